"""The model computes in a half precision that this processor has no fast products of; repaired: single precision."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import convolutions, images

options = arguments(100)
dtype = torch.float32 if options.repaired else torch.float16
model = convolutions().to(dtype)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
inputs, labels = images(16 * 16)
inputs = inputs.to(dtype)
for step in range(options.steps):
    start = step % 16 * 16
    x, y = inputs[start : start + 16], labels[start : start + 16]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).float(), y).backward()
    optimizer.step()
    tick()
