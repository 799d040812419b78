"""Other processes compute on the cores of the training; repaired: they are not there."""

import os
import signal
import subprocess
import sys

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
#: Of a shell that has ended, so that they are not the program's own; it writes their numbers.
start = '"$0" -c "while True: pass" > /dev/null & echo $!'
others = []
if not options.repaired:
    others = [int(subprocess.check_output(["sh", "-c", start, sys.executable])) for _ in range(2)]
try:
    model = perceptron(512)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs, labels = points(128 * 16)
    for step in range(options.steps):
        rows = slice(step % 16 * 128, (step % 16 + 1) * 128)
        x, y = inputs[rows], labels[rows]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        tick()
finally:
    for other in others:
        os.kill(other, signal.SIGKILL)
