"""A job of many ranks, from captures to one answer: CPU seconds, memory, HolisticTraceAnalysis and msprof-analyze.

python benchmarks/job.py --peer hta --ranks 8 64 --events 10000
python benchmarks/job.py --peer msprof --ranks 8 64 --captures ../shared/data/ascend/db_level1
python benchmarks/job.py --ranks 1024 --events 1000 --gzip      # and a report of the unchanged job
python benchmarks/job.py --ranks 64 256 --events 1000 --imported  # stepscope import of the directory, and report

Every contender is a process of its own; its CPU time is that of all its threads and children. stepscope reduces every
rank and merges them. HolisticTraceAnalysis reads all ranks and answers the same questions: temporal breakdown, overlap,
kernels, idle time and launches of every rank. msprof-analyze runs the recipes whose answers a summary holds:
cluster_time_summary, communication_time_sum, compute_op_sum and slow_rank.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from many_ranks import write_rank

ROOT = Path(__file__).resolve().parents[1]
# Every contender starts from bytecode, as packages do that pip has installed.
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
RECIPES = ("cluster_time_summary", "communication_time_sum", "compute_op_sum", "slow_rank")
_HTA = """
import logging, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
trace = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
ranks = sorted(trace.t.traces)
trace.get_temporal_breakdown(visualize=False)
trace.get_comm_comp_overlap(visualize=False)
trace.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
trace.get_idle_time_breakdown(ranks=ranks, visualize=False)
trace.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
"""


def cost(*command: object) -> tuple[float, float, float]:
    """Run a command; return its CPU seconds, its seconds, and the largest resident set of a process so far, MB."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=ROOT, env=_ENVIRONMENT, check=False
    )
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.monotonic() - began, after.ru_maxrss / 1024


def kineto_job(directory: Path, ranks: int, events: int, *, compressed: bool) -> None:
    """Write the files of a job of PyTorch."""
    for rank in range(ranks):
        path = directory / f"rank{rank}.pt.trace.json"
        write_rank(path, events, rank=rank, world_size=ranks)
        if compressed:
            with gzip.open(f"{path}.gz", "wb", 5) as file:
                file.write(path.read_bytes())
            path.unlink()


def ascend_job(directory: Path, ranks: int, captures: Path) -> None:
    """Copy a real pair of captures of Ascend's profiler, in its database format, until it has so many ranks."""
    for rank in range(ranks):
        origin = captures / f"rank{rank % 2}_ascend_pt"
        target = directory / f"rank{rank}_ascend_pt"
        shutil.copytree(origin, target)
        (target / f"profiler_info_{rank % 2}.json").rename(target / f"profiler_info_{rank}.json")
        output = target / "ASCEND_PROFILER_OUTPUT"
        database = output / f"ascend_pytorch_profiler_{rank}.db"
        (output / f"ascend_pytorch_profiler_{rank % 2}.db").rename(database)
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE RANK_DEVICE_MAP SET rankId = ?", (rank,))
        connection.close()


def peers(peer: str, traces: Path, output: Path) -> float:
    """Return the CPU seconds of another tool."""
    if peer == "hta":
        return cost(sys.executable, "-c", _HTA, traces)[0]
    tool = ROOT / ".envs" / "msprof" / "bin" / "msprof-analyze"
    commands = ((tool, "cluster", "-d", traces, "-m", recipe, "-o", output / recipe, "--force") for recipe in RECIPES)
    return sum(cost(*command)[0] for command in commands)


def measure_import(ranks: int, events: int, *, compressed: bool) -> None:
    """Print what one command costs that imports so many ranks and prints the job, and one that shows it again."""
    with tempfile.TemporaryDirectory() as directory:
        traces = Path(directory) / "traces"
        traces.mkdir()
        kineto_job(traces, ranks, events, compressed=compressed)
        stepscope = (sys.executable, "-m", "stepscope")
        used, lasted, resident = cost(*stepscope, "import", traces, "--output", Path(directory) / "runs")
        again, seconds, _ = cost(*stepscope, "report", Path(directory) / "runs")
    each = f"{1000 * used / ranks:.1f} ms a rank"
    line = f"{ranks:>5} ranks: import {used:6.1f} s CPU ({lasted:.1f} s), {each}, largest process {resident:4.0f} MB"
    print(f"{line}; report, unchanged: {again:.2f} s CPU, {seconds:.2f} s")


def measure(ranks: int, make: Callable[[Path], None], peer: str, engine: str) -> None:
    """Print what a job of so many ranks costs."""
    with tempfile.TemporaryDirectory() as directory:
        traces, job = Path(directory) / "traces", Path(directory) / "job"
        traces.mkdir()
        make(traces)
        stepscope = (sys.executable, "-m", "stepscope")
        options = ("--engine", engine) if engine else ()
        reduced, lasted, _ = cost(*stepscope, "reduce", traces, "--output", job, "--quiet", *options)
        merged, _, resident = cost(*stepscope, "merge", job)
        line = f"{ranks:>5} ranks: reduce {reduced:6.1f} s CPU ({lasted:.1f} s), merge {merged:5.2f} s CPU"
        line += f", largest process {resident:4.0f} MB"
        again, seconds, _ = cost(*stepscope, "merge", job)
        line += f"; unchanged: {again:.2f} s CPU, {seconds:.2f} s"
        if peer:
            theirs = peers(peer, traces, Path(directory))
            line += f"; {peer} {theirs:6.1f} s CPU, {theirs / (reduced + merged):.1f}x"
    print(line, flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--gzip", action="store_true", help="compress the files")
    parser.add_argument("--peer", choices=("hta", "msprof"), default="")
    parser.add_argument("--captures", type=Path, help="a pair of captures of Ascend's profiler, for msprof-analyze")
    parser.add_argument("--engine", default="", help="of stepscope reduce")
    parser.add_argument("--imported", action="store_true", help="measure stepscope import of the directory instead")
    options = parser.parse_args()
    os.nice(5)
    compileall.compile_dir(ROOT / "src" / "stepscope", quiet=1)
    for ranks in options.ranks:
        if options.imported:
            measure_import(ranks, options.events, compressed=options.gzip)
        elif options.peer == "msprof":
            measure(
                ranks, lambda path, count=ranks: ascend_job(path, count, options.captures), "msprof", options.engine
            )
        else:
            measure(
                ranks,
                lambda path, count=ranks: kineto_job(path, count, options.events, compressed=options.gzip),
                options.peer,
                options.engine,
            )


if __name__ == "__main__":
    main()
