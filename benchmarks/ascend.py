"""How fast Ascend captures become tables, against msprof-analyze on the same ranks, and how much memory that takes.

    python benchmarks/ascend.py RANKS_DIRECTORY [--rounds 5] [--peer .envs/msprof/bin/msprof-analyze]
    python benchmarks/ascend.py RANK_DIRECTORY --megabytes 1000

The first form reads every rank below the directory, text or databases, in turn with the peer: its mode
`cluster_time_summary` on databases, `all` on text. Each is a process of its own, from its start: ours until the tables
of all ranks are there and written as Parquet, the peer's until its first result is. The table shows medians, and the
part of ours that is reading.

The second form repeats the text files of one rank end to end, times, connections and steps shifted, until they are as
large as asked, and reads the result once.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# Run as `python -c CODE TARGET RANK...`; prints seconds of reading alone, peak RSS in KiB, and a count.
_TABLES = """
import resource, sys, time
from pathlib import Path
from stepscope.read import read_files
from stepscope.trace.tables import write
seconds, rows = 0.0, 0
for rank in map(Path, sys.argv[2:]):
    begin = time.perf_counter()
    frames = read_files([rank])
    seconds += time.perf_counter() - begin
    write(frames, Path(sys.argv[1]) / rank.name)
    rows += sum(frame.height for frame in frames.values())
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, rows)
"""
#: Stamps of µs, and numbers that join events.
_SHIFTED = re.compile(
    r'(?<![\d.])(\d{16})(?=[.,"\t]|\d{3}\b)|"(connection_id|correlation_id|id)": (\d{1,9})\b|ProfilerStep#(\d+)'
)
#: Files of a rank that grow with the recording.
_GROWING = (
    "trace_view.json",
    "kernel_details.csv",
    "memory_record.csv",
    "operator_memory.csv",
    "operator_details.csv",
    "npu_module_mem.csv",
)


def ours(ranks: list[Path]) -> tuple[float, float, int, int]:
    """Return seconds of the process, seconds of reading alone, peak RSS in bytes, and rows."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [sys.executable, "-c", _TABLES, folder, *map(str, ranks)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        wall = time.perf_counter() - begin
    seconds, peak, rows = printed.split()
    return wall, float(seconds), int(peak) * 1024, int(rows)


def peers(peer: Path, directory: Path, mode: str) -> float:
    """Return the seconds from the peer's start until its first result holds something."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [str(peer), "-d", str(directory), "-m", mode, "-o", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and not any(_results(Path(folder))):
                time.sleep(0.005)
            seconds = time.perf_counter() - begin
            process.wait()
        if not any(_results(Path(folder))):
            message = f"{peer} made no result of {directory}."
            raise SystemExit(message)
    return seconds


def _results(folder: Path) -> Iterator[bool]:
    # A database that is open has only its head; so has one whose first table is being written.
    for path in folder.glob("cluster_analysis_output/*"):
        yield path.stat().st_size > 0 and not path.with_name(path.name + "-journal").exists()


def rank_directories(directory: Path) -> list[Path]:
    """Return the ranks below a directory."""
    return sorted({path.parent for path in directory.rglob("ASCEND_PROFILER_OUTPUT")})


def repeat(rank: Path, target: Path, size: int) -> int:
    """Write a rank's text files with what grows repeated until there are ``size`` bytes; return how often."""
    output = target / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    texts = {path.name: path.read_text() for path in (rank / "ASCEND_PROFILER_OUTPUT").iterdir()}
    times = max(1, round(size / sum(len(texts[name]) for name in _GROWING if name in texts)))
    for path in rank.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    for name, text in texts.items():
        with (output / name).open("w", encoding="utf-8") as file:
            file.writelines(_repeated(name, text, times if name in _GROWING else 1))
    return times


def _repeated(name: str, text: str, times: int) -> Iterator[str]:
    if name.endswith(".json"):
        head, body, tail, seam = "[", text.strip()[1:-1], "]", ", "
    else:
        head, _, body = text.partition("\n")
        head, tail, seam = head + "\n", "", ""
    yield head
    for number in range(times):
        yield (seam if number else "") + _shift(name, body, number)
    yield tail


def _shift(name: str, body: str, number: int) -> str:
    def replace(match: re.Match[str]) -> str:
        stamp, key, identifier, step = match.groups()
        if stamp is not None:
            return str(int(stamp) + number * 1_000_000)
        if step is not None:
            return f"ProfilerStep#{int(step) + number}"
        return f'"{key}": {int(identifier) + number * 100_000}'

    shifted = _SHIFTED.sub(replace, body) if number else body
    if name == "kernel_details.csv" and number:
        shifted = re.sub(r"^(\d+),", lambda match: f"{int(match[1]) + number},", shifted, flags=re.MULTILINE)
    return shifted


def compare(directory: Path, peer: Path, rounds: int) -> None:
    """Print the table of both times."""
    ranks = rank_directories(directory)
    mode = "cluster_time_summary" if list(directory.rglob("ascend_*_profiler_*.db")) else "all"
    measured = [(ours(ranks), peers(peer, directory, mode)) for _ in range(rounds)]
    whole, inner = (statistics.median(one[0][place] for one in measured) for place in (0, 1))
    theirs = statistics.median(one[1] for one in measured)
    print(f"{len(ranks)} ranks of {directory}, {measured[0][0][3]} rows, medians of {rounds}")
    print(f"  msprof-analyze -m {mode}, to its first result  {theirs:7.3f} s")
    print(f"  stepscope, to all tables written               {whole:7.3f} s  {theirs / whole:5.1f} x")
    print(f"  of these to read, without the start of Python  {inner:7.3f} s  {theirs / inner:5.1f} x")


def weigh(rank: Path, megabytes: int) -> None:
    """Print how long a large capture takes, and how much memory."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / rank.name
        times = repeat(rank, target, megabytes * 1_000_000)
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        wall, _, peak, rows = ours([target])
    print(f"{rank.name} {times} times, {size / 1e6:.0f} MB, {rows} rows")
    print(f"  {wall:.1f} s, {size / 1e6 / wall:.0f} MB/s, peak {peak / 1e9:.2f} GB")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=None)
    parser.add_argument("--peer", type=Path, default=Path(".envs/msprof/bin/msprof-analyze"))
    arguments = parser.parse_args()
    if arguments.megabytes is None:
        compare(arguments.directory, arguments.peer, arguments.rounds)
    else:
        weigh(arguments.directory, arguments.megabytes)


if __name__ == "__main__":
    main()
