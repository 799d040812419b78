"""Large temporaries are given back to the system and taken again in each step; repaired: buffers are reused."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(120)
torch.manual_seed(0)
table = torch.randn(16, 640_000)
buffer = torch.empty_like(table)
model = perceptron(256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(64 * 8)
for step in range(options.steps):
    weights = model[0].weight.detach()[:16, :1]
    noisy = torch.mul(table, weights, out=buffer) if options.repaired else table * weights
    x = inputs[step % 8 * 64 :][:64] + noisy[0, 0]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), labels[step % 8 * 64 :][:64]).backward()
    optimizer.step()
    del noisy
    tick()
