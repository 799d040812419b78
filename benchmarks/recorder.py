"""Time of reading the native recorder's file into tables, against Kineto's file of the same program.

    python benchmarks/recorder.py [--steps 1150] [--rounds 5] [--shapes]

A program of many small operators runs twice, once under each recorder; a thousand steps are about a million operators.
Then each file is read in a separate process on one core, alternating; the second reading of the process is measured.
The table shows medians. `reader` is the output of the format's reader: spans, operators with their inputs, links and
tracks, before they are put on one time line. `tables` is `stepscope.read.read_files`: every table, spans nested and
linked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_RECORD = """
import sys, torch, stepscope
sys.path.insert(0, sys.argv[5])
from workloads import WORKLOADS
torch.set_num_threads(1)
step = WORKLOADS["mlp"]()
for _ in range(20):
    step()
output, collector, steps, shapes = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
with stepscope.profile(output=output, collector=collector, record_shapes=shapes, analyse="later") as profile:
    for _ in range(steps):
        step()
        profile.step()
profile.recorded[0].wait(600)
"""

# Prints seconds of processor time and of wall, peak RSS in KiB, and the number of spans.
_READ = """
import resource, sys, time
from pathlib import Path
from stepscope.read import read_capture, read_files, sniff
from stepscope.trace.losses import LossLedger
path = Path(sys.argv[1])
(capture,) = sniff.look(path)
read = (lambda: read_capture(capture, LossLedger(""))) if sys.argv[2] == "reader" else (lambda: read_files([path]))
for _ in range(2):  # the first reading includes loading Polars and page faults
    wall, cpu = time.perf_counter(), time.process_time()
    spans = read()["spans"].height
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, spans)
"""


@dataclass(frozen=True)
class Cost:
    """The cost of one reading: seconds of wall and CPU time, peak RSS in bytes, and the number of spans."""

    wall: float
    cpu: float
    peak: int
    spans: int


def record(output: Path, collector: str, steps: int, *, shapes: bool) -> Path:
    """Record the program; return the path of the operators' file."""
    here = str(Path(__file__).resolve().parent)
    arguments = [str(output), collector, str(steps), str(shapes), here]
    subprocess.run([sys.executable, "-c", _RECORD, *arguments], check=True, stdout=subprocess.DEVNULL)
    name = "recorder.ssr" if collector == "native" else "kineto_0.json"
    return next(output.rglob(name))


def read_once(file: Path, what: str) -> Cost:
    """Read a file in a separate process, on one core."""
    core = {sorted(os.sched_getaffinity(0))[0]}
    printed = subprocess.run(
        [sys.executable, "-c", _READ, str(file), what],
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    ).stdout
    wall, cpu, peak, spans = printed.split()[-4:]
    return Cost(float(wall), float(cpu), int(peak) * 1024, int(spans))


def main() -> None:
    """Record with both, read both alternately, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = {
            collector: record(Path(folder) / collector, collector, arguments.steps, shapes=arguments.shapes)
            for collector in ("kineto", "native")
        }
        kinds = [(collector, what) for what in ("reader", "tables") for collector in files]
        costs: dict[tuple[str, str], list[Cost]] = {kind: [] for kind in kinds}
        for _ in range(arguments.rounds):
            for collector, what in kinds:
                costs[collector, what].append(read_once(files[collector], what))
        _print_table(costs, {collector: file.stat().st_size for collector, file in files.items()})


def _print_table(costs: dict[tuple[str, str], list[Cost]], sizes: dict[str, int]) -> None:
    head = ("spans", "MB", "wall s", "CPU s", "M spans/CPU s", "peak/file", "x Kineto")
    print(f"{'':16}" + "".join(f"{name:>14}" for name in head))
    for (collector, what), measured in costs.items():
        wall, cpu, peak = (
            statistics.median(getattr(cost, name) for cost in measured) for name in ("wall", "cpu", "peak")
        )
        spans = measured[0].spans
        peers = costs["kineto", what]
        rate, peer = spans / cpu, peers[0].spans / statistics.median(cost.cpu for cost in peers)
        values = (f"{spans:,}", f"{sizes[collector] / 1e6:.0f}", f"{wall:.2f}", f"{cpu:.2f}", f"{rate / 1e6:.2f}",
                  f"{peak / sizes[collector]:.1f}", f"{rate / peer:.1f}")  # fmt: skip
        print(f"{collector} {what}".ljust(16) + "".join(f"{value:>14}" for value in values))


if __name__ == "__main__":
    main()
