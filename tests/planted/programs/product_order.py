"""Linear attention multiplies queries and keys first; repaired: keys and values."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

queries, keys, values, last = (nn.Linear(64, size) for size in (64, 64, 64, 10))
optimizer = torch.optim.Adam([p for layer in (queries, keys, values, last) for p in layer.parameters()])
x, y = torch.randn(8, 8, 512, 64), torch.randint(0, 10, (8, 8))
for step in range(options.steps):
    data = x[step % 8]
    q, k, v = torch.relu(queries(data)), torch.relu(keys(data)), values(data)
    k = k.transpose(1, 2)
    mixed = q @ (k @ v) if options.repaired else (q @ k) @ v
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(mixed.mean(1)), y[step % 8]).backward()
    optimizer.step()
    tick()
