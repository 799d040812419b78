"""An agent asks its policy for each environment by itself; repaired: for all of them at once."""

import torch
from ticks import arguments, tick
from torch import Tensor
from torch_parts import perceptron

options = arguments(150)
torch.manual_seed(0)
policy = perceptron(width=64, inputs=12, outputs=3, depth=2)
optimizer = torch.optim.Adam(policy.parameters(), 1e-3, fused=True)
environments, effect = 32, 0.1 * torch.randn(3, 12)


@torch.no_grad()
def rollout(length: int = 8) -> tuple[Tensor, Tensor]:
    state = torch.randn(environments, 12)
    states, actions = [], []
    for _ in range(length):
        if options.repaired:
            action = policy(state)
        else:
            action = torch.stack([policy(one.unsqueeze(0)).squeeze(0) for one in state])
        states.append(state)
        actions.append(action + 0.1 * torch.randn_like(action))
        state = 0.95 * state + actions[-1] @ effect
    return torch.cat(states), torch.cat(actions)


for _ in range(options.steps):
    states, actions = rollout()
    likely = -(policy(states) - actions).square().sum(-1)
    optimizer.zero_grad()
    (-likely * torch.randn_like(likely)).mean().backward()
    optimizer.step()
    tick()
