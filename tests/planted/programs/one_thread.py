"""The program was made for a shared machine and uses one thread of two cores; repaired: one for each core."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(120)
torch.set_num_threads(2 if options.repaired else 1)
model = perceptron(1024)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(256 * 8)
for step in range(options.steps):
    start = step % 8 * 256
    x, y = inputs[start : start + 256], labels[start : start + 256]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
