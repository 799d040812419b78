"""Weights are divided by the largest of all their singular values; repaired: by that of a power iteration."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)


class Bounded(nn.Linear):
    """A layer whose largest singular value is 1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.left = nn.functional.normalize(torch.randn(outputs), dim=0)

    def largest(self) -> torch.Tensor:
        """Return the largest singular value."""
        if not options.repaired:
            return torch.linalg.svdvals(self.weight)[0]
        with torch.no_grad():
            right = nn.functional.normalize(self.weight.T @ self.left, dim=0)
            self.left = nn.functional.normalize(self.weight @ right, dim=0)
        return self.left @ self.weight @ right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weights."""
        return nn.functional.linear(x, self.weight / self.largest(), self.bias)


model = nn.Sequential(Bounded(128, 256), nn.ReLU(), Bounded(256, 256), nn.ReLU(), Bounded(256, 10))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 512, 128), torch.randint(0, 10, (8, 512))
for step in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[step % 8]), y[step % 8]).backward()
    optimizer.step()
    tick()
