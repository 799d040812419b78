"""The validation set is evaluated after every third step; repaired: after every fiftieth."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import convolutions, images

options = arguments(150)
model = convolutions()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
inputs, labels = images(32 * 16)
held_x, held_y = images(128)


@torch.no_grad()
def evaluate() -> float:
    model.eval()
    right = sum(int((model(held_x[i : i + 64]).argmax(1) == held_y[i : i + 64]).sum()) for i in range(0, 128, 64))
    model.train()
    return right / len(held_y)


for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if (step + 1) % (50 if options.repaired else 3) == 0:
        evaluate()
    tick()
