"""Prototypes by squared distances of broadcast tensors; repaired: by a product of matrices."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(120)


class Prototypes(nn.Module):
    def __init__(self, count: int = 200, width: int = 48) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(count, width))

    def forward(self, x: Tensor) -> Tensor:
        if options.repaired:
            return 2 * x @ self.rows.T - (x * x).sum(1, keepdim=True) - (self.rows * self.rows).sum(1)
        return -((x[:, None] - self.rows) ** 2).sum(2)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 48), Prototypes())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(128, 32), torch.randint(0, 200, (128,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
