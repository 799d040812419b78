"""Features are scaled by a product with a diagonal matrix; repaired: by their vector."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

first, last = nn.Linear(256, 1024), nn.Linear(1024, 10)
scale = nn.Parameter(torch.ones(1024))
optimizer = torch.optim.Adam([*first.parameters(), *last.parameters(), scale])
x, y = torch.randn(8 * 512, 256), torch.randint(0, 10, (8 * 512,))
for step in range(options.steps):
    rows = slice(step % 8 * 512, step % 8 * 512 + 512)
    hidden = torch.relu(first(x[rows]))
    hidden = hidden * scale if options.repaired else hidden @ torch.diag(scale)
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(hidden), y[rows]).backward()
    optimizer.step()
    tick()
