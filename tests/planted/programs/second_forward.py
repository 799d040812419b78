"""The accuracy is computed by a second forward of the same batch, with gradients; repaired: from the first one."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import convolutions, images

options = arguments(150)
model = convolutions()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = images(32 * 16)
right = 0
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    logits = model(x)
    nn.functional.cross_entropy(logits, y).backward()
    predicted = logits if options.repaired else model(x)
    right += int((predicted.argmax(1) == y).sum())
    optimizer.step()
    tick()
