"""Each expert of a mixture computes all rows, and a mask keeps its own; repaired: it computes its own."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
first, gate, last = nn.Linear(32, 96), nn.Linear(96, 8), nn.Linear(96, 10)
experts = nn.ModuleList(nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96)) for _ in range(8))
optimizer = torch.optim.Adam([p for part in (first, gate, last, experts) for p in part.parameters()])
x, y = torch.randn(8, 768, 32), torch.randint(0, 10, (8, 768))
for step in range(options.steps):
    made = first(x[step % 8])
    weight, top = gate(made).softmax(-1).max(-1)
    mixed = torch.zeros_like(made)
    for number, expert in enumerate(experts):
        if options.repaired:
            rows = (top == number).nonzero().squeeze(1)
            mixed = mixed.index_add(0, rows, expert(made[rows]))
        else:
            mixed = mixed + expert(made) * (top == number).unsqueeze(-1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(mixed * weight.unsqueeze(-1)), y[step % 8]).backward()
    optimizer.step()
    tick()
