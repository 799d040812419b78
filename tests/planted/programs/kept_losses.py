"""The history of losses keeps the graph and activations of every step; repaired: ``loss.item()``."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import convolutions, images

options = arguments(100)
model = convolutions(16)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = images(64 * 8)
history = []
for step in range(options.steps):
    start = step % 8 * 64
    optimizer.zero_grad()
    logits = model(inputs[start : start + 64])
    loss = nn.functional.cross_entropy(logits, labels[start : start + 64])
    penalty = logits.pow(2).mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    history.append(loss.item() + penalty.item() if options.repaired else loss + penalty)
    tick()
