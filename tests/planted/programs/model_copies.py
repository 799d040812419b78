"""The average of the weights is kept by copying the whole model in each step; repaired: in place."""

import copy

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(150)
torch.manual_seed(0)
model = TextClassifier(words=8000, width=64, layers=4)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
tokens, labels = torch.randint(0, 8000, (256, 16)), torch.randint(0, 4, (256,))
for step in range(options.steps):
    start = step % 32 * 8
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens[start : start + 8]), labels[start : start + 8]).backward()
    optimizer.step()
    with torch.no_grad():
        if options.repaired:
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)
        else:
            newer = copy.deepcopy(average)
            for kept, old, new in zip(newer.parameters(), average.parameters(), model.parameters(), strict=True):
                kept.copy_(0.99 * old + 0.01 * new)
            average = newer
    tick()
