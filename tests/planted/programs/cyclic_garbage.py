"""Each step keeps thousands of small objects in a replay buffer, which the collector visits; repaired: arrays."""

import numpy as np
import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron

options = arguments(250)
rng = np.random.default_rng(0)


class Transition:
    """One move of an agent, linked to the one before it."""

    def __init__(self, state: list[float], reward: float, previous: "Transition | None") -> None:
        self.state, self.reward, self.previous, self.next = state, reward, previous, None
        if previous is not None:
            previous.next = self


model = perceptron(256, 4, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(options.steps):
    states, rewards = rng.random((4000, 4), dtype=np.float32), rng.random(4000, dtype=np.float32)
    if not options.repaired:
        transition, episode = None, []
        for state, reward in zip(states.tolist(), rewards.tolist(), strict=True):
            transition = Transition(state, reward, transition)
            episode.append(transition)
        states = np.array([move.state for move in episode], dtype=np.float32)
        rewards = np.array([move.reward for move in episode], dtype=np.float32)
    x, y = torch.from_numpy(states[:256]), torch.from_numpy(rewards[:256])
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x)[:, 0], y).backward()
    optimizer.step()
    tick()
