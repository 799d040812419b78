"""Each step runs under ``cProfile``; repaired: without it."""

import cProfile

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import points

options = arguments(300)
torch.manual_seed(0)


class Scaled(nn.Module):
    """A small layer of a deep network, written as users write them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(width, width) / width**0.5), nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(x @ self.weight) * self.scale


class Block(nn.Module):
    """The layer with what surrounds it in a library's blocks, most of it switched off."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), nn.Sequential(nn.Dropout(0.0), Scaled(width)), nn.Identity())
        self.last = nn.Sequential(nn.Identity(), nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x))


model = nn.Sequential(*[Block(32) for _ in range(60)], nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
inputs, labels = points(32 * 16, 32)
profiler = cProfile.Profile()
if not options.repaired:
    profiler.enable()
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
profiler.disable()
