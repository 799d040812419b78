"""Trainings with many threads live on: what Paddle's recorder does to them is kept away, and nothing of it is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import paddle
import pytest

from stepscope.collect.surgery import paddle_threads
from stepscope.collect.surgery.paddle_threads import Buffers, wait_until_past
from stepscope.collect.surgery.paddle_tracer import Tracer

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

#: Three threads that never stop computing, while windows open and close for as long as the argument says.
COMPUTE = """
import sys, threading, time
import paddle
from stepscope.collect.surgery.paddle_tracer import Tracer

done = threading.Event()


def compute():
    x = paddle.ones([4])
    while not done.is_set():
        x + x


threads = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
end, windows = time.monotonic() + float(sys.argv[1]), 0  # those that hold something
while time.monotonic() < end:
    tracer = Tracer(memory=windows % 2 == 0)
    tracer.start()
    time.sleep(0.0005)
    windows += bool(tracer.stop().get_data())
done.set()
for thread in threads:
    thread.join()
print(windows)
"""


def test_windows_open_and_close_while_threads_compute() -> None:
    # Paddle's own profiler, and a recorder that only waits some ms before it collects, crash within seconds here
    command = [sys.executable, "-W", "ignore", "-c", COMPUTE, "12"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 50


def operators(result: Any) -> Counter[str]:
    """Count what was recorded by name."""
    found: Counter[str] = Counter()
    todo = list(result.get_data().values())
    while todo:
        node = todo.pop()
        todo += node.children_node
        found[node.name] += 1
    return found


@pytest.fixture
def tracer() -> Tracer:
    found = Tracer(memory=False)
    assert found.careful
    return found


class Computing:
    """Threads that each compute once, and then live until the end of a ``with``."""

    def __init__(self, number: int) -> None:
        self.end = threading.Event()
        self.computed = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self.compute) for _ in range(number)]

    def compute(self) -> None:
        paddle.ones([4]).sin()
        self.computed.release()
        self.end.wait()

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()
            assert self.computed.acquire(timeout=30)

    def __exit__(self, *_: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


def _slots(buffers: Buffers) -> tuple[int, int]:
    begin, end, _ = buffers._list
    return begin, end


def _cut_off(buffers: Buffers) -> None:
    """Do what a thread does that read the list's end, was suspended, and writes it back behind another one."""
    begin, end, limit = buffers._list
    buffers._list[:] = [begin, end - paddle_threads._SLOT, limit]


def _written_over(buffers: Buffers) -> None:
    """Do what two threads do that put their buffers into the same place."""
    _, end = _slots(buffers)
    size = paddle_threads._SLOT
    for address in (end - 2 * size, end - size):
        paddle_threads._words(address)[:] = [0, 0] if address == end - size else list(_last(end))
    _cut_off(buffers)


def _last(end: int) -> Any:
    return paddle_threads._words(end - paddle_threads._SLOT)


@pytest.mark.parametrize("damage", [_cut_off, _written_over], ids=lambda damage: damage.__name__)
def test_threads_that_begin_to_record_at_once_are_both_there(damage: Any, tracer: Tracer) -> None:
    buffers = tracer._switch._buffers[0]
    tracer.start()
    with Computing(3):
        damage(buffers)
        found = operators(tracer.stop())
    assert found["sin dygraph"] == 3
    # and the next window has each of them once
    again = Tracer(memory=False)
    again.start()
    with Computing(3):
        pass
    assert operators(again.stop())["sin dygraph"] == 3


def test_threads_that_have_ended_are_there(tracer: Tracer) -> None:
    tracer.start()
    with Computing(40):
        pass
    assert operators(tracer.stop())["sin dygraph"] == 40


def test_the_list_of_threads_never_moves_while_paddle_records(tracer: Tracer) -> None:
    buffers = tracer._switch._buffers[0]
    tracer.start()
    begin, end = _slots(buffers)
    with Computing(40):
        assert _slots(buffers) == (begin, end + 40 * paddle_threads._SLOT)
    tracer.stop()


def test_a_thread_that_computes_is_waited_for() -> None:
    end = threading.Event()
    passed = []

    def compute() -> None:
        while not end.is_set():
            passed.append(time.thread_time_ns())

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        while not passed:
            time.sleep(0.001)
        before = passed[-1]
        assert wait_until_past(30)
        assert passed[-1] - before > paddle_threads._ENOUGH / 2
        # and one that cannot be waited for is told of
        assert not wait_until_past(-1)
    finally:
        end.set()
        thread.join()


def test_threads_that_sleep_are_not_waited_for() -> None:
    with Computing(20):
        begin = time.monotonic()
        assert wait_until_past(30)
        assert time.monotonic() - begin < 10
