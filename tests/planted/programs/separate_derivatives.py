"""Each derivative of a differential equation runs the network again; repaired: all are taken of one output."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.autograd import grad

options = arguments(120)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
)
optimizer = torch.optim.Adam(model.parameters())
ones = torch.ones(2000, 1)


def heat(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the model's output at places and times."""
    return model(torch.cat([x, t], 1))


for _ in range(options.steps):
    x, t = torch.rand(2000, 1, requires_grad=True), torch.rand(2000, 1, requires_grad=True)
    found = heat(x, t)
    by_place = grad(found, x, ones, create_graph=True)[0]
    by_time = grad(found if options.repaired else heat(x, t), t, ones, create_graph=True)[0]
    again = by_place if options.repaired else grad(heat(x, t), x, ones, create_graph=True)[0]
    curved = grad(again, x, ones, create_graph=True)[0]
    start = found if options.repaired else heat(x, t)
    loss = (by_time - 0.1 * curved + by_place * start).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
