"""How long the training stands still at the end of a window: stepscope's stop against torch.profiler's stop + export.

python benchmarks/stall.py [--events 200000,1000000] [--switches plain,shapes] [--repeats 3]

Every measurement is a process of its own; the two profilers take turns. Peak memory is that of the training process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads import SWITCHES, WORKLOADS


def steps_for(events: int, switches: dict[str, bool]) -> int:
    """Return how many steps of the MLP make about ``events`` events, by counting one recorded step."""
    import torch

    step = WORKLOADS["mlp"]()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **switches) as profiler:
        step()
    return max(1, events // len(profiler.profiler.kineto_results.events()))


def measure(name: str, events: int, switches: dict[str, bool]) -> dict[str, float]:
    """Record about ``events`` events in this process and return the stall in seconds and the peak memory in MB."""
    import torch

    import stepscope

    torch.set_num_threads(1)
    steps = steps_for(events, switches)
    step = WORKLOADS["mlp"]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        if name == "torch":
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **switches)
        else:
            profiler = stepscope.profile(activities=["cpu"], output=directory, analyse="later", **switches)
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"stall": stall, "peak": peak, "following": following}


def child(name: str, events: int, switches: str) -> dict[str, float]:
    """Run :func:`measure` in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, "--events", str(events), "--switches", switches]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one row a size and set of switches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="200000,1000000")
    parser.add_argument("--switches", default="plain,shapes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=["torch", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, int(arguments.events), SWITCHES[arguments.switches])))
        return
    print(f"{'events':>9} {'switches':<8} {'torch s':>8} {'ours s':>8} {'ratio':>6} {'torch MB':>9} {'ours MB':>8}")
    for events in (int(text) for text in arguments.events.split(",")):
        for switches in arguments.switches.split(","):
            pairs = [
                (child("torch", events, switches), child("ours", events, switches)) for _ in range(arguments.repeats)
            ]
            theirs, own = ([statistics.median(p[i][key] for p in pairs) for key in ("stall", "peak")] for i in (0, 1))
            ratio = statistics.median(pair[1]["stall"] / pair[0]["stall"] for pair in pairs)
            row = f"{events:9} {switches:<8} {theirs[0]:8.2f} {own[0]:8.2f} {ratio:6.2f} {theirs[1]:9.0f} {own[1]:8.0f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
