"""Time from a file to the answers: stepscope against HolisticTraceAnalysis, on one trace, alternating.

python benchmarks/analyse.py TRACE.json[.gz] [--repeats 3]
python benchmarks/analyse.py --megabytes 300 SMALL.json.gz      # repeats a real trace end to end until it is as large

Every measurement is a separate process and lasts from opening the file to the last answer, without imports. The
questions that both answer:

==========================================  ===================================================
HolisticTraceAnalysis                       stepscope
==========================================  ===================================================
get_temporal_breakdown                      device_time, step_trace_time
get_comm_comp_overlap                       device_time, step_trace_time
get_gpu_kernel_breakdown                    op_statistic
get_idle_time_breakdown                     step_trace_time (why nothing runs), kernel_details (waits of each stream)
get_cuda_kernel_launch_stats                kernel_details, api_statistic
==========================================  ===================================================

A second figure for stepscope covers all its results and the summary. Both print the busy time of the device, to show
that they give the same answer.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

SAME_QUESTIONS = ("device_time", "step_trace_time", "op_statistic", "kernel_details", "api_statistic")


def ask_stepscope(path: Path, *, everything: bool) -> dict[str, float]:
    """Answer with stepscope and return seconds of reading and analysing, and the device's busy time in µs."""
    from stepscope.analyse import results
    from stepscope.analyse.step.summarise import summarise
    from stepscope.read import read_files
    from stepscope.trace import tables

    begin = time.perf_counter()
    frames = tables.lazy(read_files([path]))
    read = time.perf_counter()
    answers = {name: results.compute(name, frames) for name in (results.RESULTS if everything else SAME_QUESTIONS)}
    if everything:
        summarise(frames)
    end = time.perf_counter()
    device = answers["device_time"]
    return {"read": read - begin, "analyse": end - read, "busy_us": float(device["Busy(us)"].sum())}


def ask_hta(path: Path) -> dict[str, float]:
    """Answer with HolisticTraceAnalysis and return the same."""
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)
    begin = time.perf_counter()
    trace = TraceAnalysis(trace_files={0: str(path)}, trace_dir="", include_last_profiler_step=True)
    read = time.perf_counter()
    busy = trace.get_temporal_breakdown(visualize=False).iloc[0]
    trace.get_comm_comp_overlap(visualize=False)
    trace.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    trace.get_idle_time_breakdown(ranks=[0], visualize=False)
    trace.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
    end = time.perf_counter()
    busy_us = float(busy["kernel_time(us)"] - busy["idle_time(us)"])
    return {"read": read - begin, "analyse": end - read, "busy_us": busy_us}


def measure(name: str, path: Path) -> None:
    """Run one side in this process and print its figures as JSON."""
    figures = ask_hta(path) if name == "hta" else ask_stepscope(path, everything=name == "everything")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**figures, "total": figures["read"] + figures["analyse"], "peak_mb": peak}))


def run(name: str, path: Path) -> dict[str, float]:
    """Measure one side in a fresh process."""
    command = [sys.executable, __file__, "--measure", name, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


def compare(path: Path, repeats: int) -> None:
    """Measure all sides alternately and print medians and ratios."""
    size = path.stat().st_size / 1e6
    print(f"{path.name}, {size:.0f} MB, medians of {repeats}")
    sides = ("stepscope", "everything", "hta")
    rounds = [{name: run(name, path) for name in sides} for _ in range(repeats)]
    medians = {
        name: {key: statistics.median(one[name][key] for one in rounds) for key in rounds[0][name]} for name in sides
    }
    print(f"{'':12}{'read s':>9}{'analyse s':>11}{'total s':>9}{'x file':>8}{'device busy us':>18}")
    for name, row in medians.items():
        times = f"{row['read']:9.2f}{row['analyse']:11.2f}{row['total']:9.2f}{row['peak_mb'] / size:8.1f}"
        print(f"{name:12}{times}{row['busy_us']:18.1f}")
    for name in sides[:2]:
        ratios = [one["hta"]["total"] / one[name]["total"] for one in rounds]
        print(
            f"hta / {name}: {statistics.median(ratios):.1f}x (of each round: {', '.join(f'{r:.1f}' for r in ratios)})"
        )


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=0, help="repeat the trace end to end up to this size")
    parser.add_argument("--measure", choices=("stepscope", "everything", "hta"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.trace)
    elif options.megabytes:
        from read import repeat

        with tempfile.TemporaryDirectory() as directory:
            large = Path(directory) / f"{options.trace.name.split('.')[0]}_{options.megabytes}MB.json"
            repeat(options.trace, large, options.megabytes * 1_000_000)
            compare(large, options.repeats)
    else:
        compare(options.trace, options.repeats)


if __name__ == "__main__":
    main()
