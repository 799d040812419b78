"""A memory of outputs grows by ``torch.cat`` in each step; repaired: a buffer of the final size is filled."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(300)
model = perceptron(256, 128, 128, depth=1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, _ = points(64, 128)
bank = torch.randn(16384 + 64 * options.steps if options.repaired else 16384, 128)
for step in range(options.steps):
    output = model(x)
    loss = nn.functional.mse_loss(output, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.repaired:
        bank[16384 + 64 * step : 16448 + 64 * step] = output.detach()
    else:
        bank = torch.cat([bank, output.detach()])
    tick()
