"""Does `stepscope compare` of one run a side say anything false, and does it find one operator that became slower?

python benchmarks/compare_runs.py [--rounds N] [--only NAME] [--calm-heap] [--keep DIR]

A round records three runs of one of the programs of `compared_programs.py`, each in a process of its own: two of the
same program, and one in which some calls of an operator that takes a tenth of the step take longer, by 5 % of the step
together. The first two are compared, then the second with the third. Nothing is remembered between comparisons.
``--calm-heap`` records with the settings of malloc that a comparison advises where page faults differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compared_programs import PROGRAMS

from stepscope.comparison import comparison, verdict
from stepscope.comparison.turns.looks import CALM_HEAP

PROGRAM = Path(__file__).parent / "compared_programs.py"
OPERATOR = "aten::mul"
#: Steps of each run, of which a few typical ones are recorded.
STEPS = "200"


def calls_of_operator(name: str) -> tuple[int, int]:
    """Return how many calls take 10 % of a step, and how many of them must be slow to add 5 %."""
    done = subprocess.run([sys.executable, PROGRAM, name, "--calibrate"], capture_output=True, text=True, check=True)
    units = json.loads(done.stdout)
    slow = 0.05 / (1 / units["slow"] - 1 / units["operator"])
    return max(round(0.1 * units["operator"]), round(slow)), max(round(slow), 1)


def record(name: str, calls: int, slow: int, into: Path) -> Path:
    """Record typical steps of the program, as a user would."""
    command = [sys.executable, "-m", "stepscope", "run", "-q", "-o", into, PROGRAM, name]
    subprocess.run([*map(str, command), "--steps", STEPS, "--operator", str(calls), "--slow", str(slow)], check=True)
    return into


def main() -> None:
    """Compare, and print a line for each comparison and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--calm-heap", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep the runs in this directory")
    arguments = parser.parse_args()
    if arguments.calm_heap:
        os.environ.update(CALM_HEAP)
    names = arguments.only or list(PROGRAMS)
    told_step = told_wrong = found = 0
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = state
        calls = {name: calls_of_operator(name) for name in names}
        print("calls, and slow ones:", calls, flush=True)
        for number in range(arguments.rounds):
            name = names[number % len(names)]
            count, slow = calls[name]
            runs = (arguments.keep or Path(state)) / f"{number}_{name}"
            sides = [record(name, count, slow * (side == "slow"), runs / side) for side in ("one", "two", "slow")]
            same, other = comparison.compare(*sides[:2]), comparison.compare(*sides[1:])
            told_step += sum(each.verdict != verdict.NONE for each in (same, other))
            sure = list(other.parts.sure) if other.parts else []
            right = [part for part in sure if part.name == OPERATOR and part.change_ns > 0]
            wrong = [part for part in sure if part not in right] + (list(same.parts.sure) if same.parts else [])
            told_wrong, found = told_wrong + bool(wrong), found + bool(right)
            told = [f"{part.name} {part.change_ns / (other.step_ns or 1):+.1%}" for part in (*right, *wrong)]
            print(f"{name:12}", *told or ["-"], flush=True)
            print(f"   step told {told_step}, others told {told_wrong}, found {found} of {number + 1}", flush=True)


if __name__ == "__main__":
    main()
