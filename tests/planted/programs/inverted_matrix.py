"""A kernel regression inverts its matrix; repaired: it solves the equations."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

features = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.Adam(features.parameters())
x, noise = torch.randn(8, 400, 64), torch.eye(400)
for step in range(options.steps):
    made = features(x[step % 8])
    kernel, target = made @ made.T / 128 + noise, x[step % 8, :, :1]
    weights = torch.linalg.solve(kernel, target) if options.repaired else torch.linalg.inv(kernel) @ target
    optimizer.zero_grad()
    weights.square().mean().backward()
    optimizer.step()
    tick()
