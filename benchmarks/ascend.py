"""Time and memory of reading Ascend captures into tables, against msprof-analyze on the same ranks.

    python benchmarks/ascend.py RANKS_DIRECTORY [--megabytes 200] [--mode compare] [--rounds 5]
    python benchmarks/ascend.py RANK_DIRECTORY --megabytes 1000

The first form reads every rank below the directory, text or databases, alternating with the peer; with
``--megabytes`` each rank is first enlarged to that size. The peer's mode is `cluster_time_summary` on databases and
`all` on text. Of text, `all` reads only sums of communication and of steps; `compare` (of two ranks) reads timelines
and tables, as we do. Each is a separate process and measured from its start: ours until the tables of all ranks are
written as Parquet, the peer's until its first result is written. Both find their modules compiled, as an installed
package does. The table shows medians, our time of reading alone, and the CPU time of all processes, which other work
on the machine affects less.

The second form reads one enlarged rank once, and shows the memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ascend_repeat import repeat

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


def ours(ranks: list[Path]) -> tuple[float, float, int, int]:
    """Return the seconds of the process, the seconds of reading alone, the peak RSS in bytes, and the rows."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [sys.executable, "-c", _TABLES, folder, *map(str, ranks)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, env=_compiled()).stdout
        wall = time.perf_counter() - begin
    seconds, peak, rows = printed.split()
    return wall, float(seconds), int(peak) * 1024, int(rows)


def peers(peer: Path, directory: Path, mode: str) -> float:
    """Return the seconds from the peer's start until its first result is not empty."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [str(peer), "-d", str(directory), "-m", mode, "-o", folder]
        if mode == "compare":
            one, other = rank_directories(directory)[:2]
            command = [str(peer), "compare", "-d", str(one), "-bp", str(other), "-o", folder]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, env=_compiled(), **quiet) as process:  # type: ignore[call-overload]
            while process.poll() is None and not any(_results(Path(folder))):
                time.sleep(0.005)
            seconds = time.perf_counter() - begin
            process.wait()
        if not any(_results(Path(folder))):
            message = f"{peer} wrote no result for {directory}."
            raise SystemExit(message)
    return seconds


def _compiled() -> dict[str, str]:
    """Return an environment in which Python caches compiled modules for the next process."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "ascend-benchmark-compiled")}


def _results(folder: Path) -> Iterator[bool]:
    # A database that is open, or whose first table is being written, contains only its header.
    for path in [*folder.glob("cluster_analysis_output/*"), *folder.glob("*.xlsx")]:
        yield path.stat().st_size > 0 and not path.with_name(path.name + "-journal").exists()


def rank_directories(directory: Path) -> list[Path]:
    """Return the ranks below a directory."""
    return sorted({path.parent for path in directory.rglob("ASCEND_PROFILER_OUTPUT")})


def _processor() -> float:
    """Return the CPU seconds of finished child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compare(directory: Path, peer: Path, mode: str | None, rounds: int) -> None:
    """Print the table of both times."""
    ranks = rank_directories(directory)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    usual = "cluster_time_summary" if list(directory.rglob("ascend_*_profiler_*.db")) else "all"
    mode = mode or usual
    measured, processors = [], []
    for _ in range(rounds):
        marks = [_processor()]
        mine = ours(ranks)
        marks.append(_processor())
        measured.append((mine, peers(peer, directory, mode)))
        processors.append((marks[1] - marks[0], _processor() - marks[1]))
    cpu, their_cpu = (statistics.median(one[place] for one in processors) for place in (0, 1))
    whole, inner = (statistics.median(one[0][place] for one in measured) for place in (0, 1))
    theirs = statistics.median(one[1] for one in measured)
    print(f"{len(ranks)} ranks, {size / 1e6:.1f} MB, {measured[0][0][3]} rows, medians of {rounds}")
    print(f"  msprof-analyze {mode}, to its first result     {theirs:7.3f} s")
    print(f"  stepscope, to all tables written               {whole:7.3f} s  {theirs / whole:5.1f} x")
    print(f"  reading alone, without the start of Python     {inner:7.3f} s  {theirs / inner:5.1f} x")
    print(f"  CPU time: theirs {their_cpu:.2f} s, ours {cpu:.2f} s {their_cpu / cpu:22.1f} x")


def weigh(rank: Path, megabytes: int) -> None:
    """Print time and memory of a large capture."""
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
    parser.add_argument("--mode", default=None)
    parser.add_argument("--peer", type=Path, default=Path(".envs/msprof/bin/msprof-analyze"))
    arguments = parser.parse_args()
    ranks = rank_directories(arguments.directory)
    if arguments.megabytes is None or len(ranks) > 1:
        # Warm-up: compiles the modules, and loads the files into the page cache.
        ours(ranks)
        peers(arguments.peer, arguments.directory, "all")
    if arguments.megabytes is None:
        compare(arguments.directory, arguments.peer, arguments.mode, arguments.rounds)
    elif len(ranks) == 1:
        weigh(ranks[0], arguments.megabytes)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for rank in ranks:
                repeat(rank, Path(folder) / rank.name, arguments.megabytes * 1_000_000)
            compare(Path(folder), arguments.peer, arguments.mode, arguments.rounds)


if __name__ == "__main__":
    main()
