"""A deep and narrow network, and an optimizer that goes through its tensors one by one; repaired: the fused one."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(300)
model = perceptron(64, depth=40)
if options.repaired:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
else:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
inputs, labels = points(32 * 64)
for step in range(options.steps):
    start = step % 64 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
