"""Features are enlarged, and then convolved by 1 × 1; repaired: convolved first."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn import functional

options = arguments(60)
torch.manual_seed(0)

encoder = nn.Sequential(
    nn.Conv2d(3, 64, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(64, 160, 3, stride=2, padding=1), nn.ReLU()
)
classes = nn.Conv2d(160, 12, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *classes.parameters()], lr=0.01)
images, masks = torch.randn(4, 4, 3, 128, 128), torch.randint(0, 12, (4, 4, 64, 64))
for step in range(options.steps):
    features = encoder(images[step % 4])
    if options.repaired:
        logits = functional.interpolate(classes(features), scale_factor=4, mode="bilinear")
    else:
        logits = classes(functional.interpolate(features, scale_factor=4, mode="bilinear"))
    optimizer.zero_grad()
    functional.cross_entropy(logits, masks[step % 4]).backward()
    optimizer.step()
    tick()
