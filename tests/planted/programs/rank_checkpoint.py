"""Rank 0 saves a checkpoint in each step, and rank 1 waits for it; repaired: every fiftieth step. Two ranks."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(80)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(perceptron(768))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
inputs, labels = points(64 * 16)
with tempfile.TemporaryDirectory() as folder:
    for step in range(options.steps):
        start = step % 16 * 64
        x, y = inputs[start : start + 64], labels[start : start + 64]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not options.repaired or step % 50 == 0:
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "opt": optimizer.state_dict()}, Path(folder, "c.pt"))
            dist.barrier()
        tick()
    dist.destroy_process_group()
