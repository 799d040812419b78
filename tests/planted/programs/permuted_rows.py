"""A permutation of all rows is drawn for each batch, and 128 of it are used; repaired: one permutation an epoch."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron

options = arguments(200)
torch.manual_seed(0)
ROWS, BATCH = 300_000, 128
model = perceptron(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
width = next(model.parameters()).shape[1]
inputs, labels = torch.randn(ROWS, width), torch.randint(0, 10, (ROWS,))
batches = iter(torch.randperm(ROWS).split(BATCH))
for _ in range(options.steps):
    rows = next(batches) if options.repaired else torch.randperm(ROWS)[:BATCH]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
    loss.backward()
    optimizer.step()
    tick()
