"""Two ranks meet at barriers and send their parameters after each step; repaired: DDP alone. Two ranks."""

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn

options = arguments(150)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
trained = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(options.steps):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(trained(x), y).backward()
    optimizer.step()
    if not options.repaired:
        dist.barrier()
        for one in model.parameters():
            dist.broadcast(one.data, 0)
        dist.barrier()
    tick()
dist.destroy_process_group()
