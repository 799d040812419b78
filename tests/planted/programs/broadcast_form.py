"""A bilinear form is a sum over broadcast products; repaired: an einsum."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

embed, weight = nn.Linear(64, 96), nn.Parameter(0.01 * torch.randn(10, 96, 96))
optimizer = torch.optim.Adam([*embed.parameters(), weight])
x, y = torch.randn(8, 64, 64), torch.randint(0, 10, (8, 64))
for step in range(options.steps):
    made = embed(x[step % 8])
    if options.repaired:
        scores = torch.einsum("bi,oij,bj->bo", made, weight, made)
    else:
        scores = (made[:, None, :, None] * weight[None] * made[:, None, None, :]).sum((2, 3))
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores, y[step % 8]).backward()
    optimizer.step()
    tick()
