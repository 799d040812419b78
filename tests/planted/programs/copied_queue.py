"""A queue of negatives is joined with the new ones in each step; repaired: they are written into it."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.Adam(model.parameters())
queue, place = nn.functional.normalize(torch.randn(65_536, 64), dim=1), 0
x = torch.randn(8, 128, 64)
for step in range(options.steps):
    made = nn.functional.normalize(model(x[step % 8]), dim=1)
    loss = (made @ queue[:1024].clone().T).logsumexp(1).mean() - (made * x[step % 8]).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        if options.repaired:
            queue[place : place + 128] = made
            place = (place + 128) % len(queue)
        else:
            queue = torch.cat([queue, made])[-65_536:]
    tick()
