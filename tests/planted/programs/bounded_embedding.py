"""An embedding bounds the rows that it looks up; repaired: it bounds none."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

table = nn.Embedding(50_000, 64, max_norm=None if options.repaired else 1.0, sparse=True)
model = nn.Sequential(table, nn.Flatten(), nn.Linear(32 * 64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randint(0, 50_000, (8, 256, 32)), torch.randint(0, 10, (8, 256))
for step in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[step % 8]), y[step % 8]).backward()
    optimizer.step()
    tick()
