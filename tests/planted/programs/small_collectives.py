"""Gradients are averaged by a collective a tensor; repaired: one of all of them. Two ranks."""

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch_parts import perceptron, points

options = arguments(150)
dist.init_process_group("gloo")
model = perceptron(64, depth=30)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(32 * 16)
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    if options.repaired:
        flat = _flatten_dense_tensors(gradients)
        dist.all_reduce(flat)
        for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat / 2, gradients), strict=True):
            gradient.copy_(mean)
    else:
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= 2
    optimizer.step()
    tick()
dist.destroy_process_group()
