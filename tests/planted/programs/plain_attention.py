"""Attention in pieces over 512 tokens; repaired: ``scaled_dot_product_attention``."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(80)


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.inputs, self.output = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, 2))
        if options.repaired:
            result = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            result = torch.softmax(query @ key.transpose(2, 3) / query.shape[3] ** 0.5, 3) @ value
        return self.output(result.transpose(1, 2).flatten(2))


torch.manual_seed(0)
model = nn.Sequential(Attention(), nn.LayerNorm(64), Attention(), nn.LayerNorm(64))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x, y = torch.randn(2, 512, 64), torch.randint(0, 64, (2,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).mean(1), y).backward()
    optimizer.step()
    tick()
