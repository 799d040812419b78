"""Each step puts the whole set of data into another order and takes its first rows; repaired: rows at random."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn
from torch_parts import perceptron, points

options = arguments(150)
torch.manual_seed(0)
model = perceptron(256)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(40_000)


def batch(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.randint(0, len(labels), (128,)) if options.repaired else torch.randperm(len(labels))
    return inputs[rows][:128], labels[rows][:128]


for _ in range(options.steps):
    optimizer.zero_grad()
    x, y = batch(inputs, labels)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
