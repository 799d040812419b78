"""A replay memory holds a tensor for each transition, and batches are stacked; repaired: rows of arrays by index."""

import random
from collections import deque

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(300)
torch.manual_seed(0)
random.seed(0)
COUNT, BATCH = 20_000, 256
states, actions, rewards, after = (
    torch.randn(COUNT, 8), torch.randint(4, (COUNT,)), torch.randn(COUNT, 1), torch.randn(COUNT, 8),
)  # fmt: skip
memory = deque(zip(states, actions[:, None], rewards, after, strict=True))
network, target = (nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
optimizer = torch.optim.Adam(network.parameters(), 1e-3)


def batch() -> list[torch.Tensor]:
    """Return states, actions, rewards and next states of transitions drawn at random."""
    if options.repaired:
        rows = torch.randint(COUNT, (BATCH,))
        return [states[rows], actions[rows, None], rewards[rows], after[rows]]
    return [torch.stack(field) for field in zip(*random.sample(memory, BATCH), strict=True)]


for _ in range(options.steps):
    state, action, reward, following = batch()
    with torch.no_grad():
        wanted = reward + 0.99 * target(following).max(1, keepdim=True).values
    loss = nn.functional.smooth_l1_loss(network(state).gather(1, action), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
