"""A layer computes on both ends of each edge of a graph; repaired: on each node, before its rows are gathered."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
nodes, edges, size = 1500, 15_000, 64
source, target = torch.randint(0, nodes, (2, edges))
first, last, message = nn.Linear(32, size), nn.Linear(size, 7), nn.Linear(2 * size, size)
optimizer = torch.optim.Adam([p for layer in (first, last, message) for p in layer.parameters()])
x, y = torch.randn(nodes, 32), torch.randint(0, 7, (nodes,))
for _ in range(options.steps):
    made = torch.relu(first(x))
    if options.repaired:
        ends = message.weight.split(size, 1)
        sent = (made @ ends[0].T)[source] + (made @ ends[1].T + message.bias)[target]
    else:
        sent = message(torch.cat([made[source], made[target]], 1))
    made = made + torch.zeros_like(made).index_add(0, target, torch.relu(sent))
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(made), y).backward()
    optimizer.step()
    tick()
