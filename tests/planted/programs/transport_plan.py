"""Optimal transport by 33 iterations of Sinkhorn, each of small operators; repaired: the function is compiled."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)


def transport(cost: torch.Tensor) -> torch.Tensor:
    """Return the cost of the transport plan between two sets of points of equal weight."""
    rows, columns = torch.zeros(cost.shape[0]), torch.zeros(cost.shape[1])
    for _ in range(33):
        rows = -torch.logsumexp(columns - cost, 1)
        columns = -torch.logsumexp(rows[:, None] - cost, 0)
    return ((rows[:, None] + columns - cost).exp() * cost).sum()


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loss_of = torch.compile(transport) if options.repaired else transport
for _ in range(options.steps):
    x, y = torch.randn(32, 16), torch.randn(32, 8)
    optimizer.zero_grad()
    loss_of(torch.cdist(model(x), y).square()).backward()
    optimizer.step()
    tick()
