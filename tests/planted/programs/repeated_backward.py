"""Two losses of one network are taken back one after the other through the kept graph; repaired: their sum once."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
torch.manual_seed(0)
trunk = perceptron(512, outputs=512)
heads = nn.ModuleList(nn.Linear(512, classes) for classes in (10, 4, 1))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], 0.01)
inputs, labels = points(128 * 16)
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    features = trunk(x)
    first, second, third = (head(features) for head in heads)
    losses = [nn.functional.cross_entropy(first, y), nn.functional.cross_entropy(second, y % 4), third.pow(2).mean()]
    optimizer.zero_grad()
    if options.repaired:
        torch.stack(losses).sum().backward()
    else:
        for loss in losses:
            loss.backward(retain_graph=True)
    optimizer.step()
    tick()
