"""Errors are capped at a quantile of the sorted ones; repaired: at the k-th smallest."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 1024, 256)
for step in range(options.steps):
    errors = (model(x[step % 8]) - x[step % 8]).square()
    found, place = errors.detach().flatten(), int(0.95 * errors.numel())
    cap = found.kthvalue(place).values if options.repaired else found.sort().values[place - 1]
    optimizer.zero_grad()
    torch.minimum(errors, cap).mean().backward()
    optimizer.step()
    tick()
