"""A running state keeps the graph of all steps before it, and each backward goes through it; repaired: ``detach``."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(200)
torch.manual_seed(0)
encoder = nn.Linear(256, 256)
optimizer = torch.optim.SGD(encoder.parameters(), 1e-3)
batches = torch.randn(64, 128, 256)
state = torch.zeros(256)
for step in range(options.steps):
    features = torch.tanh(encoder(batches[step % 64]))
    state = 0.9 * state + 0.1 * features.mean(0)
    loss = (features - state).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=not options.repaired)
    optimizer.step()
    if options.repaired:
        state = state.detach()
    tick()
