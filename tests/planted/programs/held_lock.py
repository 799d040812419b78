"""The loop waits for a lock that a writer holds while it sleeps; repaired: the writer takes a copy and lets go."""

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
lock, records, stop = threading.Lock(), [], threading.Event()


def send(batch: list[float]) -> None:
    """Send records to a server that answers after 15 ms."""
    time.sleep(0.015)
    batch.clear()


def write() -> None:
    while not stop.is_set():
        with lock:
            batch = records[:]
            records.clear()
            if not options.repaired:
                send(batch)
        if options.repaired:
            send(batch)
        time.sleep(0.002)


threading.Thread(target=write, daemon=True).start()
for step in range(options.steps):
    start = step % 16 * 128
    x, y = inputs[start : start + 128], labels[start : start + 128]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    with lock:
        records.append(loss.item())
    tick()
stop.set()
