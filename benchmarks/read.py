"""Time of reading Kineto JSON into tables, against HolisticTraceAnalysis, on a file of some hundred megabytes.

    python benchmarks/read.py CAPTURE.json.gz [--megabytes 300] [--rounds 3]

A real capture is repeated end to end, with shifted times and ids, up to the requested size. Every reader runs in a
separate process, alternating, with the file in the page cache; the table shows medians. `tables` is
`stepscope.read.read_files`: every table, spans nested and linked; it is compared with HolisticTraceAnalysis'
`parse_trace_file`. `columns` is its first part, the tokenizer; it is compared with `parse_trace_dataframe`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NUMBERS = re.compile(r'"(ts|correlation|External id|external id|id|Ev Idx)": (\d+)(?:\.(\d+))?|ProfilerStep#(\d+)')

# Each is run as `python -c CODE FILE` and prints seconds of wall and of processor time, peak RSS in KiB, and a count.
_FRAME = """
import resource, sys, time, warnings, logging
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from pathlib import Path
{setup}
wall, cpu = time.perf_counter(), time.process_time()
count = {run}
print(time.perf_counter() - wall, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, count)
"""
_TABLES = ("from stepscope.read import kineto, read_files", "read_files([Path(sys.argv[1])])['spans'].height")
_COLUMNS = (
    "from stepscope.read.kineto.kineto_reader import read_events\n"
    "from stepscope.read.chrome_json.document import Document\n"
    "from stepscope.trace.losses import LossLedger",
    "len(read_events(Document(Path(sys.argv[1]), LossLedger(''))))",
)
_HTA_FILE = ("from hta.common.trace import parse_trace_file", "len(parse_trace_file(sys.argv[1])[1])")
_HTA_FRAME = (
    "from hta.common.trace_parser import parse_trace_dataframe\nfrom hta.configs.parser_config import ParserConfig",
    "len(parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())[1])",
)


@dataclass(frozen=True)
class Reader:
    """One way to read the file: name, code, cores, whether with the C library, and the peer to compare it with."""

    name: str
    code: tuple[str, str]
    cores: int = 1
    native: bool = True
    peer: str | None = None


_READERS = (
    Reader("hta parse_trace_file", _HTA_FILE),
    Reader("hta parse_trace_dataframe", _HTA_FRAME),
    Reader("stepscope tables, 1 core", _TABLES, peer="hta parse_trace_file"),
    Reader("stepscope tables, 2 cores", _TABLES, cores=2, peer="hta parse_trace_file"),
    Reader("stepscope columns, 1 core", _COLUMNS, peer="hta parse_trace_dataframe"),
    Reader("stepscope tables, 1 core, no C", _TABLES, native=False, peer="hta parse_trace_file"),
    Reader("stepscope columns, 1 core, no C", _COLUMNS, native=False, peer="hta parse_trace_dataframe"),
)


@dataclass(frozen=True)
class Cost:
    """The cost of one reading: seconds of wall and CPU time, peak RSS in bytes, and the number of rows."""

    wall: float
    cpu: float
    peak: int
    rows: int


def repeat(capture: Path, target: Path, size: int) -> int:
    """Repeat the events of a capture up to ``size`` bytes; return the number of repetitions.

    Times, correlations, identifiers and step numbers go on from one repetition to the next.
    """
    content = gzip.decompress(capture.read_bytes()) if capture.suffix == ".gz" else capture.read_bytes()
    text = content.decode()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    _, end = json.JSONDecoder().raw_decode(text, begin - 1)
    body = text[begin : end - 1].rstrip()
    times = max(1, round(size / len(body)))
    with target.open("w", encoding="utf-8") as out:
        out.write(text[:begin])
        for number in range(times):
            out.write("," if number else "")
            out.writelines(_shifted(body, number, _span(body)))
        out.write("\n" + text[end - 1 :])
    return times


def _span(body: str) -> tuple[int, int, int]:
    """Return the shifts of µs, ids and step numbers between two repetitions."""
    spans = [(int(ts), int(dur)) for ts, dur in re.findall(r'"ts": (\d+)[\d.]*,\s*"dur": (\d+)', body)]
    numbers = [int(value) for value in re.findall(r'"(?:correlation|External id|external id|id|Ev Idx)": (\d+)', body)]
    steps = [int(step) for step in re.findall(r"ProfilerStep#(\d+)", body)]
    length = max(ts + dur for ts, dur in spans) - min(ts for ts, _ in spans) + 1000
    return length, max(numbers, default=0) + 1, max(steps, default=0) - min(steps, default=0) + 1


def _shifted(body: str, number: int, span: tuple[int, int, int]) -> Iterator[str]:
    micros, identifiers, steps = (number * value for value in span)

    def replace(match: re.Match[str]) -> str:
        name, whole, decimals, step = match.groups()
        if step is not None:
            return f"ProfilerStep#{int(step) + steps}"
        moved = int(whole) + (micros if name == "ts" else identifiers)
        return f'"{name}": {moved}' + (f".{decimals}" if decimals else "")

    yield _NUMBERS.sub(replace, body)


def read_once(reader: Reader, file: Path) -> Cost:
    """Run one reader in a separate process, on its number of cores."""
    setup, run = reader.code
    environment = {**os.environ, "STEPSCOPE_NATIVE": str(int(reader.native)), "POLARS_MAX_THREADS": str(reader.cores)}
    usable = sorted(os.sched_getaffinity(0))[: reader.cores]
    printed = subprocess.run(
        [sys.executable, "-c", _FRAME.format(setup=setup, run=run), str(file)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, usable),
    ).stdout
    wall, cpu, peak, rows = printed.split()[-4:]
    return Cost(float(wall), float(cpu), int(peak) * 1024, int(rows))


def main() -> None:
    """Make the file, run the readers alternately, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        times = repeat(arguments.capture, file, arguments.megabytes * 1_000_000)
        size = file.stat().st_size
        print(f"{arguments.capture.name} x {times}: {size / 1e6:.0f} MB; medians of {arguments.rounds} rounds")
        costs: dict[str, list[Cost]] = {reader.name: [] for reader in _READERS}
        for _ in range(arguments.rounds):
            for reader in _READERS:
                costs[reader.name].append(read_once(reader, file))
    _print_table(costs, size)


def _print_table(costs: dict[str, list[Cost]], size: int) -> None:
    def median(name: str, column: str) -> float:
        return statistics.median(getattr(cost, column) for cost in costs[name])

    print(f"{'':34}{'wall s':>8}{'CPU s':>8}{'MB/s':>8}{'RSS/file':>10}{'rows':>10}{'x HTA':>8}{'x HTA CPU':>11}")
    for reader in _READERS:
        wall, cpu = median(reader.name, "wall"), median(reader.name, "cpu")
        line = f"{reader.name:34}{wall:8.2f}{cpu:8.2f}{size / wall / 1e6:8.0f}"
        line += f"{median(reader.name, 'peak') / size:10.2f}{costs[reader.name][0].rows:10}"
        if reader.peer:
            line += f"{median(reader.peer, 'wall') / wall:8.1f}{median(reader.peer, 'cpu') / cpu:11.1f}"
        print(line)


if __name__ == "__main__":
    main()
