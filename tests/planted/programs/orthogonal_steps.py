"""A recurrent cell makes its orthogonal weight anew at each time step; repaired: once a step."""

from contextlib import nullcontext

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn.utils import parametrizations, parametrize

options = arguments(120)
torch.manual_seed(0)
inner = parametrizations.orthogonal(nn.Linear(80, 80, bias=False))
outer, last = nn.Linear(8, 80), nn.Linear(80, 1)
optimizer = torch.optim.Adam([*inner.parameters(), *outer.parameters(), *last.parameters()])
x, y = torch.randn(8, 256, 8, 8), torch.randn(8, 256, 1)
for step in range(options.steps):
    state = torch.zeros(256, 80)
    with parametrize.cached() if options.repaired else nullcontext():
        for part in outer(x[step % 8]).unbind(1):
            state = torch.tanh(inner(state) + part)
    optimizer.zero_grad()
    nn.functional.mse_loss(last(state), y[step % 8]).backward()
    optimizer.step()
    tick()
