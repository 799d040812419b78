"""Programs that train with Paddle, and what a recording of one holds, without stepscope's reader of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Modules and attributes of Paddle that a recording replaces while it lasts.
HOOKED = (
    ("paddle.optimizer.optimizer", "Optimizer.__init__"),
    ("paddle.optimizer.optimizer", "Optimizer.step"),
    ("paddle.optimizer.optimizer", "Optimizer.minimize"),
    ("paddle.optimizer.adam", "Adam.step"),
    ("paddle.optimizer.adamw", "AdamW.step"),
    ("paddle.optimizer.momentum", "Momentum.step"),
    ("paddle.amp.grad_scaler", "AmpScaler.minimize"),
    ("paddle.amp.grad_scaler", "GradScaler.minimize"),
    ("paddle.amp.grad_scaler", "GradScaler.step"),
    ("paddle.base.executor", "Executor.run"),
    ("paddle.hapi.model", "Model.fit"),
    ("paddle.jit.dy2static.program_translator", "ProgramCache._build_once"),
    ("paddle.hapi.callbacks", "CallbackList.on_batch_end"),
    ("paddle.io.dataloader.dataloader_iter", "_DataLoaderIterSingleProcess.__next__"),
    ("paddle.io.dataloader.dataloader_iter", "_DataLoaderIterMultiProcess.__next__"),
    ("paddle.io.dataloader.dataloader_iter", "in_profiler_mode"),
    ("paddle.base.dygraph.tensor_patch_methods", "in_profiler_mode"),
    ("paddle.profiler.utils", "in_profiler_mode"),
    ("paddle.base.core", "eager.run_backward"),
    ("paddle.base.core", "eager.run_partial_grad"),
    ("paddle.profiler.profiler", "Profiler.__init__"),
)

#: A net, its loss, an optimizer and twelve batches; the first argument is the number of workers.
EAGER = """
import json, os, sys, time
import numpy as np
import paddle

paddle.seed(1)
stamps = []


class Points(paddle.io.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return np.full(16, index / 96, "float32"), np.array(index % 4)


net = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 4))
loss_fn = paddle.nn.CrossEntropyLoss()
optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters())
loader = paddle.io.DataLoader(Points(), batch_size=8, num_workers=int(sys.argv[1]))


def step(x, y):
    loss = loss_fn(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    return loss


"""

EAGER_LOOP = """
# the loop begins
for x, y in loader:
    loss = step(x, y)
    stamps.append(time.perf_counter_ns())
print("loss", float(loss))
"""

#: The network of EAGER as one compiled program; a step ends when its loss is there.
TO_STATIC_LOOP = """
net = paddle.jit.to_static(net, full_graph=True)
for x, y in loader:
    loss = float(step(x, y))
    stamps.append(time.perf_counter_ns())
print("loss", loss)
"""

#: A program with an optimizer, run twelve times; a second one without.
STATIC_LOOP = """
import json, os, sys, time
import numpy as np
import paddle

paddle.enable_static()
paddle.seed(1)
stamps = []
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    x = paddle.static.data("x", [None, 16], "float32")
    y = paddle.static.data("y", [None, 1], "int64")
    net = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 4))
    loss = paddle.nn.functional.cross_entropy(net(x), y).mean()
    paddle.optimizer.Momentum(0.1).minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup)
random = np.random.RandomState(0)
for _ in range(12):
    feed = {"x": random.rand(8, 16).astype("float32"), "y": random.randint(0, 4, (8, 1))}
    (value,) = executor.run(main, feed=feed, fetch_list=[loss])
    stamps.append(time.perf_counter_ns())
print("loss", float(value))
"""

#: Paddle's numbers of types of events.
OPERATOR, DATA, USER, FORWARD, BACKWARD, OPTIMIZATION = 0, 1, 14, 9, 10, 11


class Event(NamedTuple):
    """An event of a thread; times in ns of the Epoch."""

    name: str
    type: int
    start: int
    end: int
    thread: int


def capture(run: Path, rank: int = 0) -> Path:
    """Return Paddle's file of a rank."""
    return run / f"rank{rank}" / "capture" / "paddle_0.pb"


def events(run: Path) -> list[Event]:
    """Return the events of a run, in order of time."""
    found = []
    for _, node in _nodes(run):
        event = dict(_fields(node[3]))
        values = [event.get(number, 0) for number in (2, 3, 4, 6)]
        found.append(Event(event[1].decode(), *values))
    return sorted((event for event in found if event.name != "root node"), key=lambda event: event.start)


def memory_times(run: Path) -> list[int]:
    """Return the times of a run's memory events, in ns of the Epoch."""
    times = []
    for whole, _ in _nodes(run):
        times += [dict(_fields(dict(_fields(value))[1]))[1] for number, value in whole if number == 5]
    return sorted(times)


def counts(run: Path, kind: int = OPERATOR) -> Counter[str]:
    """Count the events of a type by name."""
    return Counter(event.name for event in events(run) if event.type == kind)


def _nodes(run: Path) -> Iterator[tuple[list[tuple[int, int | bytes]], dict[int, bytes]]]:
    """Yield the fields of each node of every thread's tree, and the same by number."""
    for number, tree in _fields(capture(run).read_bytes()):
        if number == 3:
            for inner, node in _fields(tree):
                if inner == 2:
                    fields = list(_fields(node))
                    yield fields, dict(fields)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        elif key & 7 == 2:
            size, at = _varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        else:
            at += 8 if key & 7 == 1 else 4


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
