"""A checkpoint is written after each step; repaired: after every fiftieth."""

import tempfile
from pathlib import Path

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(150)
torch.manual_seed(0)
model = TextClassifier(width=96, words=8000)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
tokens, labels = torch.randint(0, 8000, (256, 32)), torch.randint(0, 4, (256,))
with tempfile.TemporaryDirectory() as folder:
    for step in range(options.steps):
        start = step % 32 * 8
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens[start : start + 8]), labels[start : start + 8]).backward()
        optimizer.step()
        if (step + 1) % (50 if options.repaired else 1) == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder, "last.pt"))
        tick()
