"""What it costs to time every step, outside every window: CPU time of the training thread a step, and bytes a step.

python benchmarks/step_times.py [--steps 20000] [--rounds 9]

Each round ends steps without a pause, once for a session and once for an empty loop that reads the clock; the figures
are the smallest of all rounds. It also prints what a look at each source costs, which together are most of it, and the
CPU time a step of the threads that write and sample.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.collect.options import Options
from stepscope.collect.schedule import Schedule
from stepscope.collect.session.session import Session
from stepscope.collect.session.window import Settings

NEVER = Schedule(wait=1 << 40, warmup=1, active=1)


def cost(action: Callable[[], object], steps: int, rounds: int) -> float:
    """Return the least CPU time of a call in ns."""
    least = float("inf")
    for _ in range(rounds):
        begin = time.thread_time_ns()
        for _ in range(steps):
            action()
        least = min(least, (time.thread_time_ns() - begin) / steps)
        time.sleep(0.6)  # the file's thread empties the queue
    return least


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    steps, rounds = arguments.steps, arguments.rounds
    file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    sources: dict[str, Callable[[], object]] = {
        "the clock": time.perf_counter_ns,
        "schedstat": lambda: os.pread(file, 80, 0),
        "getrusage": lambda: resource.getrusage(resource.RUSAGE_THREAD),
        "thread_time_ns": time.thread_time_ns,
    }
    for name, read in sources.items():
        print(f"{name:16}{cost(read, steps, rounds):8.0f} ns")
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(Options(), Path(directory), "steps", "never", dict)
        session = Session(settings, NEVER, source="declared", on_saved=lambda _window: None)
        session.begin()
        begin = time.process_time_ns() - time.thread_time_ns()
        print(f"{'a step':16}{cost(session.boundary, steps, rounds):8.0f} ns")
        written = time.process_time_ns() - time.thread_time_ns() - begin
        print(f"{'written':16}{written / (steps * rounds):8.0f} ns")
        session.end()
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(Options(), Path(directory), "steps", "never", dict)
        session = Session(settings, NEVER, source="declared", on_saved=lambda _window: None)
        session.begin()
        for _ in range(3_000):  # uneven steps of about 2 ms, some of which sleep
            end = time.perf_counter() + random.uniform(0.001, 0.003)
            while time.perf_counter() < end:
                pass
            if random.random() < 0.1:
                time.sleep(0.001)
            session.boundary()
        session.end()
        (path,) = Path(directory).glob("*/rank0/capture/steps.ssj")
        print(f"{'steps of 2 ms':16}{path.stat().st_size / 3_000:8.1f} bytes a step")


if __name__ == "__main__":
    main()
