"""The loss is added up sample by sample; repaired: one call for the batch."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(300)
model = perceptron(128)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(64 * 16)
criterion = nn.CrossEntropyLoss()
for step in range(options.steps):
    start = step % 16 * 64
    x, y = inputs[start : start + 64], labels[start : start + 64]
    output = model(x)
    if options.repaired:
        loss = criterion(output, y)
    else:
        loss = torch.zeros(())
        for number in range(len(y)):
            loss = loss + criterion(output[number : number + 1], y[number : number + 1])
        loss = loss / len(y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
