"""Statistics of two large weights and their gradients are read in each step; repaired: in each fiftieth."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(200)
model = perceptron(1024)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
inputs, labels = points(32 * 16)
history = []
for step in range(options.steps):
    start = step % 16 * 32
    x, y = inputs[start : start + 32], labels[start : start + 32]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if not options.repaired or step % 50 == 0:
        row = {"loss": loss.item()}
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and weight.grad is not None:
                values, grad = weight.detach(), weight.grad
                row[f"{name}/mean"] = values.mean().item()
                row[f"{name}/std"] = values.std().item()
                row[f"{name}/largest"] = values.abs().max().item()
                row[f"{name}/gradient"] = float(grad.norm())
                row[f"{name}/dead"] = (grad == 0).float().mean().item()
        history.append(row)
    tick()
