"""Each block is computed again in the backward, although memory is free; repaired: its results are kept."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

options = arguments(150)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(96, 4, 384, 0.0, batch_first=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if options.repaired else checkpoint(block, x, use_reentrant=False)
        return x.mean(1)


torch.manual_seed(0)
model = Blocks()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = torch.randn(8, 48, 96), torch.randint(0, 96, (8,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
