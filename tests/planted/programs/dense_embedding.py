"""An embedding of 200,000 rows makes a gradient of all of them in each step; repaired: ``sparse=True``."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
items = nn.EmbeddingBag(200_000, 32, mode="mean", sparse=options.repaired)
tower = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD([*items.parameters(), *tower.parameters()], 0.01)
histories, clicks = torch.randint(0, 200_000, (32, 512, 20)), torch.rand(32, 512).round()
for step in range(options.steps):
    optimizer.zero_grad()
    logits = tower(items(histories[step % 32])).squeeze(1)
    nn.functional.binary_cross_entropy_with_logits(logits, clicks[step % 32]).backward()
    optimizer.step()
    tick()
