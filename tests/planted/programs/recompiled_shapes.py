"""Batches have ever other sizes, and the compiled model is made for each; repaired: all are filled to one size."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(30)
torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000
model = perceptron(512)
compiled = torch.compile(model, backend="aot_eager", dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
inputs, labels = points(512)
sizes = torch.randperm(200)[: options.steps] + 200
for step in range(options.steps):
    size = int(sizes[step])
    filled = 512 if options.repaired else size
    weights = (torch.arange(filled) < size).float()
    optimizer.zero_grad()
    losses = nn.functional.cross_entropy(compiled(inputs[:filled]), labels[:filled], reduction="none")
    ((losses * weights).sum() / size).backward()
    optimizer.step()
    tick()
