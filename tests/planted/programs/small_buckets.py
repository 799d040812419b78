"""DistributedDataParallel with buckets of one tensor; repaired: its default. Two ranks."""

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
dist.init_process_group("gloo")
network = perceptron(64, depth=30)
if options.repaired:
    model = nn.parallel.DistributedDataParallel(network)
else:
    model = nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.001)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(32 * 16)
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
dist.destroy_process_group()
