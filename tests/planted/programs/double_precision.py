"""The data come from NumPy in double precision, and the model was made to fit; repaired: single precision."""

import numpy as np
import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron

options = arguments(150)
rng = np.random.default_rng(0)
inputs = torch.from_numpy(rng.standard_normal((128 * 16, 256)))
labels = torch.from_numpy(rng.integers(0, 10, 128 * 16))
torch.manual_seed(0)
model = perceptron(768)
if options.repaired:
    inputs = inputs.float()
else:
    model = model.double()
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
