"""Pruned layers keep weights that decay has made denormal; repaired: ``torch.set_flush_denormal(True)``."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn
from torch_parts import points

options = arguments(60)
torch.set_flush_denormal(options.repaired)
torch.manual_seed(0)


class Block(nn.Module):
    """A layer that trains, beside one that was pruned long ago."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trained = nn.Linear(width, width)
        self.pruned = nn.Linear(width, width).requires_grad_(False)
        self.pruned.weight.mul_(1e-38)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.trained(x) + self.pruned(x))


inputs, labels = points(64 * 8)
width = inputs.shape[1]
model = nn.Sequential(Block(width), Block(width), Block(width), nn.Linear(width, int(labels.max()) + 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(options.steps):
    start = step % 8 * 64
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[start : start + 64]), labels[start : start + 64]).backward()
    optimizer.step()
    tick()
