"""What the facts of docs/facts.md add to a step of 20 ms, by CPU time and by wall time, with each recorder and without.

python benchmarks/facts.py [--framework torch] [--seconds 60]

Blocks of steps with and without what collects the facts (times of all steps, events in steps, batches, compilations,
models and optimizers, uses of autocast; not the samples of stacks, which ``stack_samples.py`` measures), in pairs of
random order in one process: alone, and while each recorder of the framework records. A figure is the median of the
differences of the pairs, with a 95 % interval (bootstrap over pairs). Run it in the framework's environment.

A busy machine hides what is so small. So the calls that the facts lengthen are measured one by one, too: the least CPU
time of many, with the facts less without; a step has one of each, but makes no module and jits nothing. It also prints
how long the collectors of the facts take when a window opens and closes, which belongs to no step.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fact_subjects import SUBJECTS, Subject, state_of

from stepscope.collect.host.thread_use import ThreadUseCollector
from stepscope.collect.journal.journal import Journal
from stepscope.collect.machine.machine_facts import MachineCollector
from stepscope.collect.options import Options
from stepscope.collect.protocol import Context
from stepscope.collect.session.step_times import StepTimes
from stepscope.collect.session.window import Settings

#: Steps of a block.
STEPS = 5
RESAMPLES = 1000


@contextmanager
def facts() -> Iterator[StepTimes]:
    """Collect the facts of steps inside."""
    with tempfile.TemporaryDirectory() as directory:
        options = Options(counters_hz=0, stacks_hz=0)
        times = StepTimes(Settings(options, Path(directory), "facts", "never", dict), lasts=True)
        times.install()
        times.begin_step(time.perf_counter_ns())
        try:
            yield times
        finally:
            times.close()


@contextmanager
def recording(make: Callable[[], Any]) -> Iterator[None]:
    """Record operators inside."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory) / "journal.ssj")
        collector = make()
        collector.prepare(Context(0, Path(directory), Options(), journal))
        collector.start()
        try:
            yield
        finally:
            collector.stop()
            if hasattr(collector, "settle"):
                collector.settle()
            journal.close()


def block(step: Callable[[], None], times: StepTimes | None) -> tuple[float, float]:
    """Return CPU time of this thread, and wall time, of a step in ns."""
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(STEPS):
        step()
        if times is not None:
            times.end_step()
    return (time.thread_time_ns() - cpu) / STEPS, (time.perf_counter_ns() - wall) / STEPS


def pair(step: Callable[[], None], make: Callable[[], Any] | None) -> dict[bool, tuple[float, float]]:
    """Return the figures of a block without (False) and with the facts."""
    found = {}
    for collected in random.sample([False, True], 2):
        with recording(make) if make is not None else nullcontext():
            if collected:
                with facts() as times:
                    step()
                    times.end_step(0)  # the first one starts the thread that writes
                    found[collected] = block(step, times)
            else:
                step()
                found[collected] = block(step, None)
    return found


def interval(differences: list[float]) -> str:
    """Return the median and its 95 % interval in µs."""
    resampled = sorted(statistics.median(random.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    low, high = resampled[RESAMPLES // 40], resampled[-RESAMPLES // 40]
    return f"{statistics.median(differences) / 1e3:+8.1f} µs [{low / 1e3:+.1f}, {high / 1e3:+.1f}]"


def least(action: Callable[[], object], count: int = 200, rounds: int = 40) -> float:
    """Return the least CPU time of a call in µs."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time_ns()
        for _ in range(count):
            action()
        best = min(best, (time.thread_time_ns() - begin) / count / 1e3)
    return best


def one_by_one(subject: Subject) -> None:
    """Print what the facts add to each call, and to a step together."""
    bare = {name: least(call) for name, call in subject.calls().items()}
    with facts() as times:
        known = {name: least(call) for name, call in subject.calls().items()}
        added = {name: known[name] - bare[name] for name in bare}
        added["end of a step"] = least(lambda: times.end_step())
    for name, value in added.items():
        print(f"{name:20}{value:+8.2f} µs")
    together = sum(value for name, value in added.items() if name not in subject.seldom)
    print(f"{'a step':20}{together:+8.2f} µs, {together / 20_000:.3%} of 20 ms")


def window(kinds: tuple[Callable[[], Any], ...]) -> None:
    """Print what the collectors take when a window opens and closes."""
    for kind in kinds:
        took: dict[str, list[float]] = {"prepare": [], "start": [], "stop": []}
        for _ in range(9):
            with tempfile.TemporaryDirectory() as directory:
                journal = Journal(Path(directory) / "journal.ssj")
                collector = kind()
                calls: dict[str, Callable[[], object]] = {
                    "prepare": lambda c=collector, d=directory, j=journal: c.prepare(Context(0, Path(d), Options(), j)),
                    "start": collector.start,
                    "stop": collector.stop,
                }
                for name, call in calls.items():
                    begin = time.thread_time_ns()
                    call()
                    took[name].append((time.thread_time_ns() - begin) / 1e6)
                journal.close()
        shown = ", ".join(f"{name} {statistics.median(values):.2f} ms" for name, values in took.items())
        print(f"{collector.name:12} {shown}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=SUBJECTS, default="torch")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each recorder")
    options = parser.parse_args()
    subject, seconds = SUBJECTS[options.framework], options.seconds
    step = subject.step()
    for _ in range(5):
        step()
    one_by_one(subject)
    for name, make in subject.recorders.items():
        pairs = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(pairs) < 3:
            pairs.append(pair(step, make))
        bare = statistics.median(one[False][0] for one in pairs)
        added = [one[True][0] - one[False][0] for one in pairs]
        waited = [one[True][1] - one[False][1] for one in pairs]
        print(f"recorder {name}: {len(pairs)} pairs, a step takes {bare / 1e6:.1f} ms of CPU time")
        print(f"  CPU time  {interval(added)}, {100 * statistics.median(added) / bare:+.2f} %")
        print(f"  wall time {interval(waited)}")
    with facts():
        window((state_of(options.framework), MachineCollector, ThreadUseCollector))


if __name__ == "__main__":
    main()
