"""Does `stepscope compare --turns` call unchanged programs different, and does it find a slowdown of 5 %?

python benchmarks/compare_turns.py [--comparisons N] [--pairs 3,5] [--burner] [--only NAME]

Each comparison starts pairs of the programs of `compared_programs.py` that take turns. Half of the comparisons are of
one unchanged program with itself; in the other half, B has an extra of 5 % of the step, whose size a calibration in one
process gives. With `--burner`, a process computes now and then on each core. Nothing is remembered between comparisons.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from compared_programs import PROGRAMS

from stepscope.comparison.turns.looks import TurnsPlan, compare_in_turns
from stepscope.comparison.turns.programs import two_programs

HERE = Path(__file__).parent
PROGRAM = HERE / "compared_programs.py"
BURNER = """
import os, random, time
os.sched_setaffinity(0, {%d})
while True:
    end = time.time() + random.choice([0.01, 0.05, 0.3, 1.5]) * random.random() * 2
    while time.time() < end:
        for _ in range(2000): pass
    time.sleep(random.choice([0.02, 0.1, 0.6, 3.0]) * random.random() * 2)
"""


@contextlib.contextmanager
def burners(*, wanted: bool) -> Iterator[None]:
    """Let a process compute now and then on each core."""
    cores = os.sched_getaffinity(0) if wanted else ()
    started = [subprocess.Popen([sys.executable, "-c", BURNER % core]) for core in cores]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def units_of_five_percent(name: str) -> int:
    """Return how many small products take 5 % of a step of the program."""
    done = subprocess.run([sys.executable, PROGRAM, name, "--calibrate"], capture_output=True, text=True, check=True)
    return max(round(0.05 * json.loads(done.stdout)["units"]), 1)


def main() -> None:
    """Compare, and print a line for each comparison and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--pairs", type=lambda text: tuple(map(int, text.split(","))), default=(3, 5))
    parser.add_argument("--burner", action="store_true")
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    arguments = parser.parse_args()
    names = arguments.only or list(PROGRAMS)
    random.seed(0)
    sums = {0: [0, 0], 5: [0, 0]}
    with tempfile.TemporaryDirectory() as state, burners(wanted=arguments.burner):
        units = {name: units_of_five_percent(name) for name in names}
        print("units of 5 %:", units, flush=True)
        for number in range(arguments.comparisons):
            os.environ["XDG_STATE_HOME"] = str(Path(state) / str(number))
            name, slow = names[number // 2 % len(names)], 5 * (number % 2)
            base = f"{sys.executable} {PROGRAM} {name} --steps 100000000"
            begun = time.monotonic()
            command = f"{base} --units {units[name] if slow else 0}"
            with two_programs(command, f"{base} --units 0", Path.cwd()) as (a, b):
                found = compare_in_turns(a, b, TurnsPlan(arguments.pairs))
            step = found.step
            assert step is not None
            sums[slow][0] += found.verdict == "slower" if slow else found.verdict != "no difference"
            sums[slow][1] += 1
            interval = f"{step.change:+.1%} ({step.low:+.1%} … {step.high:+.1%})"
            waited = found.machine.delay[0] or 0
            took = time.monotonic() - begun
            how = f"{step.runs[0]} pairs, {waited:.0%} waited, {took:.0f} s"
            print(f"{name:12} +{slow} % {found.verdict:14} {interval} {how}", *found.causes, flush=True)
            print(f"   false {sums[0][0]} of {sums[0][1]}, found {sums[5][0]} of {sums[5][1]}", flush=True)


if __name__ == "__main__":
    main()
