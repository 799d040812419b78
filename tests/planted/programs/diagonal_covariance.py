"""The posterior of an autoencoder has a full covariance that is diagonal; repaired: one of independent numbers."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
kinds = torch.distributions
encoder, means, spreads = nn.Linear(400, 128), nn.Linear(128, 48), nn.Linear(128, 48)
decoder = nn.Linear(48, 400)
optimizer = torch.optim.Adam([p for part in (encoder, means, spreads, decoder) for p in part.parameters()])
x = torch.randn(8, 128, 400)


def normal(mean: torch.Tensor, spread: torch.Tensor) -> kinds.Distribution:
    """Return a normal distribution of independent numbers."""
    if options.repaired:
        return kinds.Independent(kinds.Normal(mean, spread, validate_args=False), 1)
    return kinds.MultivariateNormal(mean, torch.diag_embed(spread.square()), validate_args=False)


for step in range(options.steps):
    hidden = torch.relu(encoder(x[step % 8]))
    found = normal(means(hidden), nn.functional.softplus(spreads(hidden)) + 0.1)
    prior = normal(torch.zeros(128, 48), torch.ones(128, 48))
    errors = (decoder(found.rsample()) - x[step % 8]).square().sum(1)
    optimizer.zero_grad()
    (errors + kinds.kl_divergence(found, prior)).mean().backward()
    optimizer.step()
    tick()
