"""The activations of a layer are kept for a histogram nobody draws; repaired: their mean is kept."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(150)
torch.manual_seed(0)
first, second = nn.Sequential(nn.Linear(64, 2048), nn.ReLU()), nn.Linear(2048, 10)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.01)
inputs, labels = torch.randn(512 * 4, 64), torch.randint(0, 10, (512 * 4,))
seen = []
for step in range(options.steps):
    start = step % 4 * 512
    hidden = first(inputs[start : start + 512])
    loss = nn.functional.cross_entropy(second(hidden), labels[start : start + 512])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    values = hidden.detach()
    seen.append(values.mean().item() if options.repaired else values.clone())
    tick()
