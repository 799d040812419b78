"""The loop sleeps until the writer of metrics has emptied its queue; repaired: it leaves the writer alone."""

import queue
import threading
import time

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron, points

options = arguments(200)
model = perceptron(512)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = points(128 * 16)
losses: queue.Queue[float] = queue.Queue()
written: list[float] = []


def write() -> None:
    while True:
        written.append(losses.get())


threading.Thread(target=write, daemon=True).start()
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.put(loss.item())
    while not options.repaired:
        time.sleep(0.01)
        if losses.empty():
            break
    tick()
