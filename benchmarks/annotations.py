"""The cost of an annotation, off and on, and of importing stepscope, compared with torch.profiler.record_function.

python benchmarks/annotations.py [--rounds 25] [--calls 2000] [--starts 11]

Calls are measured in blocks that alternate in random order, minus an empty loop; the output is the median over rounds
and the 90th percentile. "Off" is without a recording. "On" records into a journal: the time of the call itself, and
separately the CPU time of encoding and writing one record, which another thread does twice a second. record_function is
measured without and with a torch profiler. Starts are new processes that alternate, minus the start of a bare Python.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import stepscope
from stepscope.collect import annotations
from stepscope.collect.journal.journal import Journal

Block = Callable[[int], None]

STARTS = {
    "bare Python": ["-c", "pass"],
    "import stepscope": ["-c", "import stepscope"],
    "stepscope.span": ["-c", "import stepscope; stepscope.span"],
    "stepscope.profile": ["-c", "import stepscope; stepscope.profile"],
    "stepscope --help": ["-m", "stepscope", "--help"],
    "stepscope --version": ["-m", "stepscope", "--version"],
}


def block_of(statement: str, **names: object) -> Block:
    """Return a function that executes ``statement`` a given number of times, as plain code in a loop."""
    source = f"def block(calls):\n    for _ in range(calls):\n        {statement}\n"
    scope = {"stepscope": stepscope, "span": stepscope.span, **names}
    exec(source, scope)
    made: Block = scope["block"]  # type: ignore[assignment]
    return made


def our_blocks() -> dict[str, Block]:
    """Return the blocks that measure stepscope, by name."""

    @stepscope.span("decorated")
    def decorated() -> None:
        pass

    return {
        "with span('x')": block_of("with span('x'): pass"),
        "with span('x', i=1)": block_of("with span('x', i=1): pass"),
        "a decorated function": block_of("f()", f=decorated),
        "mark('x')": block_of("stepscope.mark('x')"),
        "counter('x', 0.5)": block_of("stepscope.counter('x', 0.5)"),
    }


def torch_blocks() -> dict[str, Block]:
    """Return the blocks that measure torch, by name; empty if torch is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    blocks = {"torch record_function": block_of("with f('x'): pass", f=torch.profiler.record_function)}
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    if fast is not None:
        blocks["torch _RecordFunctionFast"] = block_of("with f('x'): pass", f=fast)
    return blocks


def measure(
    blocks: Mapping[str, Block], rounds: int, calls: int, after: Callable[[], object] = lambda: None
) -> dict[str, list[float]]:
    """Return ns per call of every block in every round, minus the empty loop; ``after`` runs between blocks."""
    empty = block_of("pass")
    figures: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name in random.sample(sorted(blocks), k=len(blocks)):
            loop = timed(empty, calls)
            figures[name].append((timed(blocks[name], calls) - loop) / calls)
            after()
    return figures


def timed(block: Block, calls: int) -> int:
    """Return the ns of one block."""
    begin = time.perf_counter_ns()
    block(calls)
    return time.perf_counter_ns() - begin


@contextmanager
def recording(directory: str) -> Iterator[Journal]:
    """Record annotations into a separate journal."""
    journal = Journal(Path(directory) / "journal.ssj")
    annotations.bind(journal)
    try:
        yield journal
    finally:
        annotations.unbind()
        journal.close()


def writing(journal: Journal, block: Block, rounds: int, calls: int) -> list[float]:
    """Return the CPU time in ns of encoding and writing one record."""
    figures = []
    for _ in range(rounds):
        journal.flush()
        block(calls)
        begin = time.thread_time_ns()
        journal.flush()
        figures.append((time.thread_time_ns() - begin) / calls)
    return figures


def starts(repeats: int) -> dict[str, list[float]]:
    """Return the durations of new processes in ms."""
    figures: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(repeats):
        for name in random.sample(sorted(STARTS), k=len(STARTS)):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *STARTS[name]], check=True, stdout=subprocess.DEVNULL)
            figures[name].append((time.perf_counter() - begin) * 1e3)
    return figures


def show(title: str, figures: Mapping[str, list[float]], unit: str) -> None:
    """Print median and 90th percentile of every row."""
    print(f"\n{title:<28} {'median':>9} {'p90':>9}  {unit}")
    for name, values in figures.items():
        high = statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
        print(f"{name:<28} {statistics.median(values):>9.1f} {high:>9.1f}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--starts", type=int, default=11)
    arguments = parser.parse_args()
    ours, theirs = our_blocks(), torch_blocks()
    gc.collect()
    show("off", measure({**ours, **theirs}, arguments.rounds, arguments.calls), "ns per call")
    with tempfile.TemporaryDirectory() as directory, recording(directory) as journal:
        figures = measure(ours, arguments.rounds, arguments.calls, journal.flush)
        written = {name: writing(journal, block, arguments.rounds, arguments.calls) for name, block in ours.items()}
    show("on", figures, "ns per call")
    show("on: writing it", written, "ns of CPU a record, on the journal's thread")
    lost = {loss.what: loss.count for loss in journal.ledger.rows()}
    print(f"lost while measuring: {lost or 'nothing'}")
    if theirs:
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            figures = measure(theirs, arguments.rounds, arguments.calls)
        show("under torch.profiler", figures, "ns per call")
    figures = starts(arguments.starts)
    bare = statistics.median(figures["bare Python"])
    show("starts", figures, "ms")
    show("starts, less bare Python", {name: [v - bare for v in values] for name, values in figures.items()}, "ms")


if __name__ == "__main__":
    main()
