"""Time of reading XPlane files into tables, against the readers of JAX and of XProf, on a file of a hundred megabytes.

    python benchmarks/xplane.py CAPTURE.xplane.pb --jax .envs/jax/bin/python [--xprof VENV/bin/python]
        [--megabytes 110] [--rounds 5]

The lines of a real capture are repeated with shifted times up to the requested size. Every reader runs in a separate
process on one core, alternating, with the file in the page cache; the table shows medians.
`tables` is `stepscope.read.read_files`: every table, spans nested and linked. `reader` is its first part, the tables of
the file. `ProfileData` is `jax.profiler.ProfileData`, whose events are visited with name, times and stats; `events_db`
is XProf's database of events (`xspace_to_parquet`). Memory is the growth of the process from before it read the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.read.common.protobuf import BLOCK, fields_of

# Fields of XSpace, XPlane and XLine.
_PLANES, _LINES, _TIMESTAMP, _EVENTS = 1, 3, 3, 4

# Each is run as `python -c CODE FILE` and prints seconds of wall and of processor time, growth in KiB, and a count.
_FRAME = """
import resource, sys, time
from pathlib import Path
{setup}
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, wall, cpu = peak(), time.perf_counter(), time.process_time()
count = {run}
print(time.perf_counter() - wall, time.process_time() - cpu, peak() - before, count)
"""
_TABLES = ("from stepscope.read import read_files", "read_files([Path(sys.argv[1])])['spans'].height")
_READER = (
    "from stepscope.read.xplane import xplane_reader as reader\nfrom stepscope.trace.losses import LossLedger",
    "reader.read(Path(sys.argv[1]), LossLedger(''))['spans'].height",
)
_PROFILE_DATA = (
    "from jax.profiler import ProfileData",
    "sum(bool((event.name, event.start_ns, event.duration_ns, [*event.stats]))"
    " for plane in ProfileData.from_file(sys.argv[1]).planes for line in plane.lines for event in line.events)",
)
_EVENTS_DB = (
    "from xprof.convert.events_db.python.pywrap_events_db_c_api import xspace_to_parquet",
    "xspace_to_parquet(input_path=sys.argv[1], output_path=sys.argv[1] + '.parquet')",
)


@dataclass(frozen=True)
class Reader:
    """One way to read the file: name, code, its environment, and whether with the C library."""

    name: str
    code: tuple[str, str]
    python: str = sys.executable
    native: bool = True


@dataclass(frozen=True)
class Cost:
    """The cost of one reading: seconds of wall and CPU time, and growth of memory in bytes."""

    wall: float
    cpu: float
    peak: int


def repeat(capture: Path, target: Path, size: int) -> int:
    """Repeat the lines of a capture up to ``size`` bytes; return the number of events."""
    content = capture.read_bytes()
    times = max(1, round(size / len(content)))
    events = 0
    with target.open("wb") as out:
        for number, wire, _, start, end in fields_of(content, 0, len(content)):
            body = content[start:end]
            if number == _PLANES and wire == BLOCK:
                lines, rest = _split(body)
                events += times * sum(map(_events, lines))
                length = max(map(_length, lines), default=0)
                body = b"".join([*rest, *_later(lines, times, length)])
            out.write(_block(number, body))
    return events


def _split(plane: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the lines of a plane, and its other fields as encoded bytes."""
    lines, rest, at = [], [], 0
    for number, wire, _, start, end in fields_of(plane, 0, len(plane)):
        if number == _LINES and wire == BLOCK:
            lines.append(plane[start:end])
        else:
            rest.append(plane[at:end])
        at = end
    return lines, rest


def _events(line: bytes) -> int:
    return sum(number == _EVENTS for number, *_ in fields_of(line, 0, len(line)))


def _length(line: bytes) -> int:
    """Return the start of the last event of a line in ns."""
    events = [(start, end) for number, _, _, start, end in fields_of(line, 0, len(line)) if number == _EVENTS]
    offsets = [value for start, end in events for number, _, value, *_ in fields_of(line, start, end) if number == 2]
    return max(offsets, default=0) // 1000


def _later(lines: list[bytes], times: int, length: int) -> Iterator[bytes]:
    """Yield each line once per repetition, with a second timestamp appended: in protobuf the last value counts."""
    for line in lines:
        start = next((value for number, _, value, *_ in fields_of(line, 0, len(line)) if number == _TIMESTAMP), 0)
        for repetition in range(times):
            yield _block(_LINES, line + _varint(_TIMESTAMP << 3) + _varint(start + repetition * (length + 1_000_000)))


def _block(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | BLOCK) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def read_once(reader: Reader, file: Path) -> Cost:
    """Run one reader in a separate process, on one core."""
    setup, run = reader.code
    environment = {**os.environ, "STEPSCOPE_NATIVE": str(int(reader.native)), "POLARS_MAX_THREADS": "1"}
    core = max(os.sched_getaffinity(0))
    printed = subprocess.run(
        [reader.python, "-c", _FRAME.format(setup=setup, run=run), str(file)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ).stdout
    wall, cpu, peak, _ = printed.split()[-4:]
    return Cost(float(wall), float(cpu), int(peak) * 1024)


def main() -> None:
    """Make the file, run the readers alternately, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--jax", help="Python of an environment with JAX")
    parser.add_argument("--xprof", help="Python of an environment with XProf")
    parser.add_argument("--megabytes", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    readers = [Reader("tables", _TABLES), Reader("reader", _READER), Reader("reader, no C", _READER, native=False)]
    readers += [Reader("ProfileData", _PROFILE_DATA, arguments.jax)] if arguments.jax else []
    readers += [Reader("events_db", _EVENTS_DB, arguments.xprof)] if arguments.xprof else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.xplane.pb"
        events = repeat(arguments.capture, file, arguments.megabytes * 1_000_000)
        size = file.stat().st_size
        print(f"{arguments.capture.name}: {size / 1e6:.0f} MB, {events} events; medians of {arguments.rounds} rounds")
        costs: dict[str, list[Cost]] = {reader.name: [] for reader in readers}
        for _ in range(arguments.rounds):
            for reader in readers:
                costs[reader.name].append(read_once(reader, file))
    _print_table(costs, events, size)


def _print_table(costs: dict[str, list[Cost]], events: int, size: int) -> None:
    def median(name: str, column: str) -> float:
        return statistics.median(getattr(cost, column) for cost in costs[name])

    peers = [name for name in ("ProfileData", "events_db") if name in costs]
    head = f"{'':14}{'wall s':>8}{'CPU s':>8}{'M events/CPU s':>16}{'memory/file':>13}"
    print(head + "".join(f"{'x ' + peer + ' CPU':>19}" for peer in peers))
    for name in costs:
        cpu = median(name, "cpu")
        line = f"{name:14}{median(name, 'wall'):8.2f}{cpu:8.2f}{events / cpu / 1e6:16.2f}"
        line += f"{median(name, 'peak') / size:13.2f}"
        print(line + "".join(f"{median(peer, 'cpu') / cpu:19.1f}" for peer in peers))


if __name__ == "__main__":
    main()
