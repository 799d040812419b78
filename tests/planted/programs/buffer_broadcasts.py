"""The first rank sends the statistics of 24 BatchNorm layers in each step; repaired: it does not. Two ranks."""

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn
from torch_parts import points

options = arguments(200)
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [part for _ in range(24) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), broadcast_buffers=not options.repaired)
optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
x, y = points(16, 48)
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
dist.destroy_process_group()
