"""A program that takes turns as a training does, without a framework: its steps take what the command line says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

#: argv: ns that a step says it took, page faults it says it has, steps; a file for what the program saw; or also the
#: code of a child, and the file by which it is known to run.
PROGRAM = """
import json, os, socket, subprocess, sys, time
took, faults, steps, saw = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
child = subprocess.Popen([sys.executable, "-c", sys.argv[5]], start_new_session=True) if len(sys.argv) > 5 else None
while child and not os.path.exists(sys.argv[6]):
    time.sleep(0.01)
said = json.loads(os.environ["STEPSCOPE_TURNS"])
line = socket.socket(socket.AF_UNIX)
line.connect(said["socket"])
rows, done = [], 0
while True:
    with open(saw, "a") as file:
        file.write(f"waits {time.monotonic_ns()}\\n")
    line.sendall(json.dumps({"process": os.getpid(), "rows": rows, "threads": 1, "device": False}).encode() + b"\\n")
    told = b""
    while not told.endswith(b"\\n"):
        piece = line.recv(4096)
        if not piece:
            sys.exit()
        told += piece
    with open(saw, "a") as file:
        file.write(f"goes {time.monotonic_ns()}\\n")
    time.sleep(0.02)
    rows = [(took + 1000 * (number % 5), 0, faults) for number in range(10)]
    done += 10
    if done > steps:
        sys.exit()
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., str]:
    """Return a command: ns of a step, its page faults, steps until it ends, file of what it saw, code of a child."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def make(
        took: int, *, faults: int = 0, steps: int = 100_000, saw: str = "saw", child: tuple[str, Path] | None = None
    ) -> str:
        rest = "" if child is None else f" '{child[0]}' {child[1]}"
        return f"{sys.executable} {script} {took} {faults} {steps} {tmp_path / saw}{rest}"

    return make
