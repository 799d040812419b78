"""The distributions of a variational autoencoder check their arguments; repaired: they do not."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

if options.repaired:
    torch.distributions.Distribution.set_default_validate_args(value=False)
encoder, decoder = nn.Linear(400, 64), nn.Linear(32, 400)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
x = torch.randn(8, 4096, 400)
for step in range(options.steps):
    mean, spread = encoder(x[step % 8]).chunk(2, -1)
    hidden = torch.distributions.Normal(mean, spread.exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    sample = hidden.rsample()
    seen = torch.distributions.Normal(decoder(sample), torch.ones_like(x[0])).log_prob(x[step % 8])
    loss = torch.distributions.kl_divergence(hidden, prior).sum(-1).mean() - seen.sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
