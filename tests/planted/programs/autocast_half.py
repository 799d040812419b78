"""Autocast turns the products of small layers into bfloat16 with many casts; repaired: without autocast."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(120)
torch.manual_seed(0)
model = TextClassifier(width=64, layers=3)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
tokens, labels = torch.randint(0, 5000, (256, 24)), torch.randint(0, 4, (256,))
for step in range(options.steps):
    start = step % 32 * 8
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=not options.repaired):
        loss = nn.functional.cross_entropy(model(tokens[start : start + 8]), labels[start : start + 8])
    loss.backward()
    optimizer.step()
    tick()
