"""A recurrent network is written out operator by operator and time step by time step; repaired: ``nn.LSTM``."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(150)


class Recurrent(nn.Module):
    """A long short-term memory of one layer."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input, self.state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.width)
        for t in range(x.shape[1]):
            i, f, g, o = (self.input(x[:, t]) + self.state(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


torch.manual_seed(0)
body = nn.LSTM(32, 64, batch_first=True) if options.repaired else Recurrent(32, 64)
head = nn.Linear(64, 4)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
signals, labels = torch.randn(512, 60, 32), torch.randint(0, 4, (512,))
for step in range(options.steps):
    start = step % 32 * 16
    x, y = signals[start : start + 16], labels[start : start + 16]
    out = body(x)
    h = out[0][:, -1] if isinstance(out, tuple) else out
    optimizer.zero_grad()
    nn.functional.cross_entropy(head(h), y).backward()
    optimizer.step()
    tick()
