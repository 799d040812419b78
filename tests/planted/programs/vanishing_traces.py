"""Traces of a spiking network decay until they are denormal; repaired: these are flushed to zero."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(150)
torch.set_flush_denormal(options.repaired)
torch.manual_seed(0)
current, readout = nn.Linear(64, 512), nn.Linear(512, 10)
optimizer = torch.optim.SGD([*current.parameters(), *readout.parameters()], 0.01)
traces = torch.full((400, 512), 1e-38)
for _ in range(options.steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    spikes = torch.relu(current(x))
    decayed = traces
    for _ in range(12):
        decayed = 0.9 * decayed
    optimizer.zero_grad()
    nn.functional.cross_entropy(readout(spikes + decayed.mean(0)), y).backward()
    optimizer.step()
    tick()
