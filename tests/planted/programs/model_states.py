"""The average of the weights is kept by ``state_dict()``, once for each of its tensors; repaired: by one call."""

import copy

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
layers = [part for _ in range(40) for part in (nn.Linear(128, 128), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(128, 10))
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def update() -> None:
    if options.repaired:
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)
        return
    state = {name: 0.999 * old + 0.001 * model.state_dict()[name] for name, old in average.state_dict().items()}
    average.load_state_dict(state)


for _ in range(options.steps):
    x, y = torch.randn(32, 128), torch.randint(0, 10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    update()
    tick()
