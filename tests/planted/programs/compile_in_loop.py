"""``torch.compile`` is called on a new function in each step; repaired: once."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn
from torch_parts import perceptron, points

options = arguments(30)
model = perceptron(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(128 * 16)


def objective(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)


compiled = torch.compile(objective, backend="aot_eager")
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    if not options.repaired:
        torch._dynamo.reset()
        compiled = torch.compile(objective, backend="aot_eager")
    optimizer.zero_grad()
    compiled(x, y).backward()
    optimizer.step()
    tick()
