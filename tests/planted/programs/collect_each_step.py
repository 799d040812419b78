"""``gc.collect()`` in each step; repaired: without it."""

import gc

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(150)
torch.manual_seed(0)
model = TextClassifier()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
tokens, labels = torch.randint(0, 5000, (256, 32)), torch.randint(0, 4, (256,))
for step in range(options.steps):
    start = step % 16 * 16
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens[start : start + 16]), labels[start : start + 16]).backward()
    optimizer.step()
    if not options.repaired:
        gc.collect()
    tick()
