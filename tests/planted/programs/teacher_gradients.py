"""A teacher network runs with gradients, which flow back into it; repaired: ``torch.no_grad()``."""

import contextlib

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
torch.manual_seed(0)
teacher, student = perceptron(1024, depth=4), perceptron(128)
optimizer = torch.optim.SGD(student.parameters(), 0.01)
inputs, _ = points(64 * 16)
for step in range(options.steps):
    x = inputs[step % 16 * 64 :][:64]
    with torch.no_grad() if options.repaired else contextlib.nullcontext():
        wanted = teacher(x).softmax(1)
    optimizer.zero_grad()
    nn.functional.kl_div(student(x).log_softmax(1), wanted, reduction="batchmean").backward()
    optimizer.step()
    tick()
