"""oneDNN is switched off, as after the search for an error; repaired: it is on."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)

torch.backends.mkldnn.set_flags(options.repaired)
model = nn.Sequential(
    *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, stride=2), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(32 * 16 * 16, 10)),
)
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(8, 32, 3, 32, 32), torch.randint(0, 10, (8, 32))
for step in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x[step % 8]), y[step % 8]).backward()
    optimizer.step()
    tick()
