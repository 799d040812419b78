"""Each step logs its tensors as text; repaired: its number."""

import logging

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(150)
logging.basicConfig(filename="train.log", level=logging.INFO)
log = logging.getLogger("train")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for step in range(options.steps):
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
    made = model(x)
    loss = nn.functional.cross_entropy(made, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.repaired:
        log.info("step %d", step)
    else:
        log.info(f"step {step}: loss {loss}, outputs {made}, gradients {[one.grad for one in model.parameters()]}")
    tick()
