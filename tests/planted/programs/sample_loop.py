"""The model is called sample by sample; repaired: once for the batch."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(250)
model = perceptron(256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(32 * 64)
for step in range(options.steps):
    start = step % 64 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    if options.repaired:
        loss = nn.functional.cross_entropy(model(x), y)
    else:
        loss = torch.stack(
            [nn.functional.cross_entropy(model(a[None]), b[None]) for a, b in zip(x, y, strict=True)]
        ).mean()
    loss.backward()
    optimizer.step()
    tick()
