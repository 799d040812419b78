"""The cost of the start-up hook in a Python that does not use it: alternating starts with and without the hook.

python benchmarks/startup_hook.py [--rounds 150]

It makes a bare virtual environment with and without ``stepscope.pth``, and prints the medians of a start and of the
difference within each pair.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path

HOOK = Path(__file__).resolve().parents[1] / "stepscope.pth"
VARIABLES = ("STEPSCOPE_OPTIONS", "MS_PROFILER_OPTIONS", "STEPSCOPE_STARTUP", "PYTHONPATH")


def pairs(home: Path, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of starts without and with the hook, ``rounds`` of each."""
    venv.create(home, with_pip=False)
    python, variables = home / "bin" / "python", {key: os.environ[key] for key in os.environ if key not in VARIABLES}
    [site] = home.glob("lib/python*/site-packages")

    def start() -> float:
        begin = time.perf_counter()
        subprocess.run([python, "-c", "pass"], env=variables, check=True)
        return time.perf_counter() - begin

    found = []
    for _ in range(rounds):
        without = start()
        shutil.copy(HOOK, site)
        found.append((without, start()))
        (site / HOOK.name).unlink()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        found = pairs(Path(home), arguments.rounds)
    without = statistics.median(before for before, _ in found)
    added = statistics.median(after - before for before, after in found)
    print(
        f"a start of Python: {without * 1e3:.1f} ms; the hook adds {added * 1e3:.2f} ms (medians of {arguments.rounds})"
    )


if __name__ == "__main__":
    main()
