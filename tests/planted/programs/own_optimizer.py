"""Adam written by hand, tensor by tensor; repaired: ``torch.optim.Adam(fused=True)``."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(300)


class Adam:
    def __init__(self, parameters: list[nn.Parameter], rate: float = 1e-3) -> None:
        self.parameters, self.rate, self.steps = parameters, rate, 0
        self.means = [torch.zeros_like(one) for one in parameters]
        self.squares = [torch.zeros_like(one) for one in parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
            square.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            step = mean / (1 - 0.9**self.steps)
            parameter.sub_(self.rate * step / ((square / (1 - 0.999**self.steps)).sqrt() + 1e-8))


torch.manual_seed(0)
layers = [part for _ in range(30) for part in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(32, 4))
parameters = list(model.parameters())
optimizer = torch.optim.Adam(parameters, fused=True) if options.repaired else Adam(parameters)
x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
