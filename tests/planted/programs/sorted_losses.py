"""The hardest tenth is taken from losses that are all sorted; repaired: ``topk``, which sorts only what it gives."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, targets = torch.randn(1024 * 8, 64), torch.randn(1024 * 8, 128)
for step in range(options.steps):
    rows = slice(step % 8 * 1024, step % 8 * 1024 + 1024)
    losses = ((model(inputs[rows]) - targets[rows]) ** 2).flatten()
    hardest = losses.topk(4096)[0] if options.repaired else losses.sort(descending=True)[0][:4096]
    optimizer.zero_grad()
    hardest.mean().backward()
    optimizer.step()
    tick()
