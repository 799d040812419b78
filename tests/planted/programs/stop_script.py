"""Each step starts a script that looks whether the training is to stop; repaired: it looks itself."""

import subprocess
import sys
from pathlib import Path

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
model = perceptron(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(128 * 16)
SCRIPT = "import pathlib, sys; sys.exit(pathlib.Path('STOP').exists())"


def stops() -> bool:
    if options.repaired:
        return Path("STOP").exists()
    return bool(subprocess.run([sys.executable, "-c", SCRIPT], check=False).returncode)


for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if stops():
        break
    tick()
