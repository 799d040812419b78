"""What threads used is what they did: computed, waited, wrote."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from stepscope.collect.host.thread_use import ThreadUseCollector
from tests.unit.collect.conftest import Recording


def test_a_thread_that_computes_and_one_that_waits(recording: Recording, tmp_path: Path) -> None:
    stop, done = threading.Event(), threading.Barrier(3)

    def compute() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        done.wait(60)
        stop.wait()

    def wait() -> None:
        for _ in range(5):
            time.sleep(0.001)
        done.wait(60)
        stop.wait()

    threads = [threading.Thread(target=compute, name="computes"), threading.Thread(target=wait, name="waits")]
    with recording.of(ThreadUseCollector()):
        for thread in threads:
            thread.start()
        with (tmp_path / "file").open("wb") as file:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        done.wait(60)
    stop.set()
    for thread in threads:
        thread.join()
    rows = {row["name"]: row for row in recording.read().metadata["threads"]}
    assert rows["computes"]["cpu"] >= 50_000_000
    assert rows["waits"]["voluntary_switches"] >= 5
    assert rows["waits"]["cpu"] < 40_000_000
    here = rows[threading.main_thread().name]
    assert here["thread"] == threading.main_thread().native_id
    assert here["written"] in (0, *range(1 << 20, 1 << 22))  # 0: a file system without a disk
    assert all(value >= 0 for row in rows.values() for key, value in row.items() if key not in ("thread", "name"))


#: Garbage whose end takes the lock of Python's threads, collected at one of the allocations that follow.
GARBAGE = """
import faulthandler, gc, threading
faulthandler.dump_traceback_later(60, exit=True)
from stepscope.collect.host.thread_use import frames_of_threads

class Node:
    pass

stop = threading.Event()
for _ in range(5):
    threading.Thread(target=stop.wait, daemon=True).start()
for room in range(12):
    gc.disable()
    for _ in range(50):
        node = Node()
        node.local, node.itself = threading.local(), node
        node.local.value = 1
    gc.set_threshold(gc.get_count()[0] + room)
    gc.enable()
    assert len(frames_of_threads()) == 6
    assert gc.isenabled()
"""


def test_frames_of_threads_are_read_while_no_garbage_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", GARBAGE], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
