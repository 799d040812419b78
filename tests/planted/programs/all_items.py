"""All items go through a network, and a batch of them is used; repaired: those of the batch."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
ITEMS, USERS, BATCH = 4000, 3000, 256
features, users = torch.randn(ITEMS, 64), nn.Embedding(USERS, 32)
tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.Adagrad([*users.parameters(), *tower.parameters()], 0.01)
clicks = torch.rand(BATCH)
for _ in range(options.steps):
    user, item = torch.randint(0, USERS, (BATCH,)), torch.randint(0, ITEMS, (BATCH,))
    chosen = tower(features[item]) if options.repaired else tower(features)[item]
    score = (users(user) * chosen).sum(1)
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(score, clicks).backward()
    optimizer.step()
    tick()
