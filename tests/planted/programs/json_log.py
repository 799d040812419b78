"""All gradients are written to a log as JSON in each step; repaired: their norm."""

import json
import tempfile

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(150)
model = perceptron(128, 128)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(256 * 16, 128)
with tempfile.TemporaryFile("w") as log:
    for step in range(options.steps):
        start = step % 16 * 256
        x, y = inputs[start : start + 256], labels[start : start + 256]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        record = {"step": step, "loss": loss.item()}
        if options.repaired:
            record["norm"] = float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        else:
            record |= {name: p.grad.tolist() for name, p in model.named_parameters()}
        log.write(json.dumps(record) + "\n")
        optimizer.step()
        tick()
