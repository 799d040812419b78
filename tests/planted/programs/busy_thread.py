"""A thread that watches the training computes in Python without end; repaired: it looks once a second."""

import threading

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(200)
model = perceptron(64, depth=16)
optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
inputs, labels = points(32 * 16)
stop, losses = threading.Event(), []


def watch() -> None:
    while not stop.is_set():
        sum(value * value for value in losses[-500:])
        if options.repaired:
            stop.wait(1.0)


threading.Thread(target=watch, daemon=True).start()
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
stop.set()
