"""The target network takes the state of the other one in each step; repaired: in each fiftieth."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(150)
torch.manual_seed(0)


class Block(nn.Module):
    """A layer with a norm, beside which its input goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.layer(self.norm(x)))


def network() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(30)), nn.Linear(64, 4))


online, target = network(), network()
optimizer = torch.optim.Adam(online.parameters(), 1e-3, foreach=True)
states, actions = torch.randn(2048, 64), torch.randint(0, 4, (2048, 1))
for step in range(options.steps):
    rows = slice(step % 64 * 32, step % 64 * 32 + 32)
    with torch.no_grad():
        best = target(states[rows]).amax(1, keepdim=True)
    loss = nn.functional.mse_loss(online(states[rows]).gather(1, actions[rows]), 1.0 + 0.9 * best)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not options.repaired or step % 50 == 0:
        target.load_state_dict(online.state_dict())
    tick()
