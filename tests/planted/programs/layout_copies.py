"""Each block permutes its images to normalise over channels, and copies them; repaired: ``channels_last``."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(100)


class Block(nn.Module):
    """A block in the manner of ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1).contiguous()
        y = self.norm(y).permute(0, 3, 1, 2).contiguous(memory_format=LAYOUT)
        return x + self.mix(torch.relu(y))


LAYOUT = torch.channels_last if options.repaired else torch.contiguous_format
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    *[Block(32) for _ in range(4)],
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
).to(memory_format=LAYOUT)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
images = torch.randn(16 * 8, 3, 48, 48).contiguous(memory_format=LAYOUT)
labels = torch.randint(0, 10, (16 * 8,))
for step in range(options.steps):
    start = step % 8 * 16
    x, y = images[start : start + 16], labels[start : start + 16]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
