"""A new optimizer is made for each step, and its state with it; repaired: one before the loop."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)], nn.Linear(512, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
for _ in range(options.steps):
    if not options.repaired:
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    x, y = torch.randn(16, 512), torch.randint(0, 4, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
