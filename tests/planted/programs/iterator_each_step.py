"""Each step makes a new iterator of the loader, which shuffles all samples; repaired: one iterator."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_parts import perceptron, points

options = arguments(150)
loader = DataLoader(TensorDataset(*points(200_000, 24)), batch_size=64, shuffle=True)
model = perceptron(width=256, inputs=24)
optimizer = torch.optim.Adam(model.parameters(), fused=True)
batches = iter(loader)
for _ in range(options.steps):
    x, y = next(batches) if options.repaired else next(iter(loader))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
