"""Other processes compute on the cores of the training; repaired: they are not there."""

import subprocess
import sys

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
others = []
if not options.repaired:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
try:
    model = perceptron(512)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs, labels = points(128 * 16)
    for step in range(options.steps):
        start = step % 16 * 128
        x, y = inputs[start : start + 128], labels[start : start + 128]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        tick()
finally:
    for other in others:
        other.kill()
