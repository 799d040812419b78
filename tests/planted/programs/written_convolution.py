"""Convolutions are windows and a product; repaired: torch's own."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)


class Windows(nn.Module):
    """A convolution of 3 × 3."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(outputs, inputs, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        if options.repaired:
            return nn.functional.conv2d(x, self.weight, padding=1)
        windows = nn.functional.unfold(x, 3, padding=1)
        return (self.weight.flatten(1) @ windows).view(len(x), len(self.weight), *x.shape[2:])


model = nn.Sequential(Windows(3, 16), nn.ReLU(), Windows(16, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 32 * 32, 10))
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 32, 3, 32, 32), torch.randint(0, 10, (8, 32))
for step in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[step % 8]), y[step % 8]).backward()
    optimizer.step()
    tick()
