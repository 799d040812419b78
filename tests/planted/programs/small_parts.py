"""A batch of 64 is taken two samples at a time, with a backward for each two; repaired: 32 at a time."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(100)
torch.manual_seed(0)
model = perceptron(128, depth=3)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
inputs, labels = points(64 * 16)
size = 32 if options.repaired else 2
for step in range(options.steps):
    start = step % 16 * 64
    optimizer.zero_grad()
    for part in range(start, start + 64, size):
        x, y = inputs[part : part + size], labels[part : part + size]
        (nn.functional.cross_entropy(model(x), y) * size / 64).backward()
    optimizer.step()
    tick()
