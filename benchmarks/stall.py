"""Time that the training stalls at the end of a window: stepscope's stop against torch.profiler's stop + export.

python benchmarks/stall.py [--events 200000,1000000] [--switches plain,shapes] [--repeats 3]
    [--collector kineto|native] [--ranks 2]

Every measurement is a separate process; the two profilers alternate. Memory is the growth of the training process's
peak from before the start to after the stop; bytes are those of the files. With ``--ranks``, several processes train
together, and the figures are those of rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads import SWITCHES, WORKLOADS, Step, launched


def steps_for(step: Step, events: int, switches: dict[str, bool]) -> int:
    """Return how many steps, tens of them, make about ``events`` events, by counting one recorded step."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **switches) as profiler:
        step()
    return max(1, events // len(profiler.profiler.kineto_results.events()) // 10 * 10)


def measure(name: str, events: int, switches: dict[str, bool], collector: str) -> dict[str, float]:
    """Record about ``events`` events in this process and return the stall in seconds, memory and files in MB."""
    import torch

    import stepscope

    torch.set_num_threads(1)
    step = WORKLOADS["ddp" if "RANK" in os.environ else "mlp"]()
    for _ in range(3):
        step()
    steps = steps_for(step, events, switches)
    before = peak()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if name == "torch":
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **switches)
        else:
            profiler = stepscope.profile(
                activities=["cpu"], output=directory, analyse="later", collector=collector, **switches
            )
        profiler.start()
        for _ in range(steps):
            step()
            profiler.step()
        begin = time.perf_counter()
        profiler.stop()
        if name == "torch":
            profiler.export_chrome_trace(str(Path(directory) / "trace.json"))
        stall = time.perf_counter() - begin
        after = time.perf_counter()
        for _ in range(20):
            step()
        following = (time.perf_counter() - after) / 20
        if name != "torch":
            profiler.recorded[0].wait()
        written = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()) / 1e6
    return {"stall": stall, "memory": peak() - before, "written": written, "following": following}


def peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def child(name: str, events: int, switches: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run :func:`measure` in a separate process, or in several that train together."""
    command = launched(arguments.ranks) if arguments.ranks > 1 else [sys.executable]
    command += [__file__, "--measure", name, "--events", str(events), "--switches", switches]
    command += ["--collector", arguments.collector]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one row per size and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="200000,1000000")
    parser.add_argument("--switches", default="plain,shapes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--collector", default="auto", help="collector of stepscope's profile (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--measure", choices=["torch", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        found = measure(arguments.measure, int(arguments.events), SWITCHES[arguments.switches], arguments.collector)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return
    keys = ("stall", "memory", "written")
    print(f"{'events':>9} {'switches':<8}" + "".join(f"{f'torch {key}':>15} {'ours':>8} {'ratio':>6}" for key in keys))
    for events in (int(text) for text in arguments.events.split(",")):
        for switches in arguments.switches.split(","):
            pairs = [
                tuple(child(name, events, switches, arguments) for name in ("torch", "ours"))
                for _ in range(arguments.repeats)
            ]
            row = f"{events:9} {switches:<8}"
            for key in keys:
                theirs, own = (statistics.median(pair[place][key] for pair in pairs) for place in (0, 1))
                ratio = statistics.median(pair[1][key] / pair[0][key] for pair in pairs)
                row += f"{theirs:15.3f} {own:8.3f} {ratio:6.3f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
