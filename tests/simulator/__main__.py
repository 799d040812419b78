"""Write the files of a simulated job: ``python -m tests.simulator DIRECTORY --ranks 8 --seed 1``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tests.simulator.faults import ACCEPTED
from tests.simulator.random_faults import LEVELS, random_job
from tests.simulator.shapes import KINDS, random_shape


def main() -> None:
    """Read the command line and write a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--events", type=int, help="about how many events a rank's file holds")
    parser.add_argument("--compress", action="store_true", help="write .json.gz")
    parser.add_argument("--level", choices=[*LEVELS, "healthy"], default="healthy", help="how strong its fault is")
    parser.add_argument("--fault", choices=sorted(ACCEPTED), default="", help="which fault; drawn by chance without it")
    options = parser.parse_args()
    shape = random_shape(options.seed, options.ranks, options.kind)
    if options.events:
        shape = replace(shape, events=options.events)
    random_job(shape, options.level, options.fault).write(options.directory, compress=options.compress)


if __name__ == "__main__":
    main()
