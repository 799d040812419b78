"""The scores of pairs are the diagonal of all rows times all rows; repaired: each row times its own."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
users = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128))
items = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters()])
first, second = torch.randn(1024 * 8, 64), torch.randn(1024 * 8, 64)
for step in range(options.steps):
    rows = slice(step % 8 * 1024, step % 8 * 1024 + 1024)
    a, b = users(first[rows]), items(second[rows])
    score = (a * b).sum(1) if options.repaired else (a @ b.T).diagonal()
    optimizer.zero_grad()
    nn.functional.softplus(-score).mean().backward()
    optimizer.step()
    tick()
