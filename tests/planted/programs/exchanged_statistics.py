"""Each layer of two ranks normalises by the statistics of both; repaired: by those of its own batch."""

from typing import Any

import torch
import torch.distributed as dist
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(100)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        values = values.clone()
        dist.all_reduce(values)
        return values

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Normalise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        moments = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))])
        if not options.repaired:
            moments = Sum.apply(moments) / dist.get_world_size()
        mean, square = moments[:, :, None, None]
        return (x - mean) * (square - mean * mean + 1e-5).rsqrt()


dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [part for _ in range(12) for part in (nn.Conv2d(16, 16, 3, padding=1), Normalise(), nn.ReLU())]
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
trained = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
for _ in range(options.steps):
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(trained(x), y).backward()
    optimizer.step()
    tick()
dist.destroy_process_group()
