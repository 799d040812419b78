"""Gradients of each part of an accumulated batch are exchanged; repaired: of the last (``no_sync``). Two ranks."""

import contextlib

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(60)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(perceptron(1024, depth=4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(8 * 64)
for step in range(options.steps):
    optimizer.zero_grad()
    for part in range(8):
        start = (step + part) % 64 * 8
        last = part == 7
        with contextlib.nullcontext() if last or not options.repaired else model.no_sync():
            loss = nn.functional.cross_entropy(model(inputs[start : start + 8]), labels[start : start + 8]) / 8
            loss.backward()
    optimizer.step()
    tick()
dist.destroy_process_group()
