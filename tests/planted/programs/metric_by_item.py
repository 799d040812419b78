"""The accuracy is counted with ``.item()`` for each sample; repaired: with one operator."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(600)
model = perceptron(128)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(256 * 16)
seen = right = 0
for step in range(options.steps):
    start = step % 16 * 256
    x, y = inputs[start : start + 256], labels[start : start + 256]
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predicted = logits.argmax(1)
    if options.repaired:
        right += int((predicted == y).sum())
    else:
        for guess, truth in zip(predicted, y, strict=True):
            if guess.item() == truth.item():
                right += 1
    seen += len(y)
    tick()
print(f"accuracy {right / seen:.3f}")
