"""An ensemble of small networks that a loop calls one after the other; repaired: their weights lie in one tensor."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(150)
torch.manual_seed(0)


class Stacked(nn.Module):
    """All networks at once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Parameter(0.1 * torch.randn(32, a, b)) for a, b in ((32, 64), (64, 8)))
        self.biases = nn.ParameterList(torch.zeros(32, 1, width) for width in (64, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Return what each network gives."""
        return torch.tanh(x @ self.first + self.biases[0]) @ self.last + self.biases[1]


class OneByOne(nn.Module):
    """One network after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(32))

    def forward(self, x: Tensor) -> Tensor:
        """Return what each network gives."""
        return torch.stack([network(x) for network in self.networks])


model = Stacked() if options.repaired else OneByOne()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
x, y = torch.randn(8, 128, 32), torch.randn(8, 128, 8)
for step in range(options.steps):
    optimizer.zero_grad()
    (model(x[step % 8]) - y[step % 8]).square().mean().backward()
    optimizer.step()
    tick()
