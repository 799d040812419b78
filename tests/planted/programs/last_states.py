"""A head computes all states of a sequence, of which the last is used; repaired: the last state alone."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(60)
torch.manual_seed(0)

recurrent = nn.GRU(12, 96, batch_first=True)
head = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.LayerNorm(384), nn.Linear(384, 24))
optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()])
x, y = torch.randn(8, 64, 96, 12), torch.randn(8, 64, 24)
for step in range(options.steps):
    states, _ = recurrent(x[step % 8])
    found = head(states[:, -1]) if options.repaired else head(states)[:, -1]
    optimizer.zero_grad()
    (found - y[step % 8]).square().mean().backward()
    optimizer.step()
    tick()
