"""Anomaly detection was left on after a search for a NaN; repaired: off."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(150)
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(not options.repaired)
model = TextClassifier(width=64, layers=3)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
tokens, labels = torch.randint(0, 5000, (256, 24)), torch.randint(0, 4, (256,))
for step in range(options.steps):
    start = step % 32 * 8
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens[start : start + 8]), labels[start : start + 8]).backward()
    optimizer.step()
    tick()
