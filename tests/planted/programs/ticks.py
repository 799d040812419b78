"""What every planted program shares: its arguments, and the clock that is read at the end of each step."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import time
from pathlib import Path
from typing import NamedTuple


class Arguments(NamedTuple):
    """What the command line says.

    Attributes:
        repaired: Whether the cause is taken away.
        steps: How many steps to train.
    """

    repaired: bool
    steps: int


_stamps: list[tuple[int, int]] = []


def arguments(steps: int) -> Arguments:
    """Return the arguments; ``steps`` is the default number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repaired", action="store_true")
    parser.add_argument("--steps", type=int, default=steps)
    options, _ = parser.parse_known_args()
    if "PLANTED_TIMES" in os.environ and os.environ.get("RANK", "0") == "0":
        atexit.register(_write, os.getpid())
    return Arguments(options.repaired, options.steps)


def tick() -> None:
    """Note the end of a step: wall time, and how long the main thread has waited for a core, ns."""
    if "PLANTED_TIMES" in os.environ:
        delay = int(Path("/proc/self/schedstat").read_text().split()[1])
        _stamps.append((time.perf_counter_ns(), delay))


def _write(process: int) -> None:
    if os.getpid() == process:
        Path(os.environ["PLANTED_TIMES"]).write_text(json.dumps(_stamps))
