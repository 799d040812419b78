"""Gradients are clipped tensor by tensor; repaired: ``clip_grad_norm_``."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(400)


def clip(parameters: list[nn.Parameter], most: float = 1.0) -> None:
    total = 0.0
    for parameter in parameters:
        total += (parameter.grad**2).sum().item()
    for parameter in parameters:
        parameter.grad = parameter.grad * min(1.0, most / (total**0.5 + 1e-6))


torch.manual_seed(0)
layers = [part for _ in range(30) for part in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(32, 4))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, 0.01, foreach=True)
x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if options.repaired:
        nn.utils.clip_grad_norm_(parameters, 1.0)
    else:
        clip(parameters)
    optimizer.step()
    tick()
