"""The loss is a logarithm of a softmax that is written out; repaired: torch's cross entropy."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 2000))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 1024, 128), torch.randint(0, 2000, (8, 1024))
rows = torch.arange(1024)
for step in range(options.steps):
    scores, target = model(x[step % 8]), y[step % 8]
    if options.repaired:
        loss = nn.functional.cross_entropy(scores, target)
    else:
        powers = torch.exp(scores - scores.max(1, keepdim=True).values)
        loss = -torch.log((powers / powers.sum(1, keepdim=True))[rows, target] + 1e-12).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
