"""Rank 1 augments its batches more than rank 0 does; repaired: both do the same. Two ranks."""

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import Tensor, nn
from torch_parts import convolutions, images

options = arguments(150)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(convolutions(16))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = images(16 * 16)


def augment(batch: Tensor) -> Tensor:
    for _ in range(60 if dist.get_rank() == 1 and not options.repaired else 2):
        batch = nn.functional.avg_pool2d(batch, 3, 1, 1)
    return batch


for step in range(options.steps):
    start = step % 16 * 16
    x, y = inputs[start : start + 16], labels[start : start + 16]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(augment(x)), y).backward()
    optimizer.step()
    tick()
dist.destroy_process_group()
