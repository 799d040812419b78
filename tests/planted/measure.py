"""Running planted programs: without a profiler, in turns and pinned; and under ``stepscope run``."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.planted.cases import Case

ROOT = Path(__file__).parents[2]
#: The first steps of a program warm up; this share of them is left out of its true times.
WARM_UP = 0.2
TIMEOUT_S = 300


class TrueTimes(NamedTuple):
    """What steps take without a profiler, ns, one number a run of the program."""

    planted: list[float]
    repaired: list[float]

    @property
    def step(self) -> float:
        """Return the step of the planted program."""
        return statistics.median(self.planted)

    @property
    def gain(self) -> float:
        """Return what the repaired twin saves per step."""
        return self.step - statistics.median(self.repaired)


def python_of(framework: str) -> str:
    """Return the interpreter that has a framework: that of its environment beside this one, or this one."""
    other = Path(sys.prefix).parent / framework / "bin" / "python"
    return str(other if other.exists() else sys.executable)


def true_times(case: Case, repeats: int, steps: int | None = None) -> TrueTimes:
    """Measure a program and its twin in turns.

    Raises:
        RuntimeError: The program failed; the message holds the end of its output.
    """
    times = TrueTimes([], [])
    for _ in range(repeats):
        for repaired, found in ((False, times.planted), (True, times.repaired)):
            with tempfile.TemporaryDirectory() as folder:
                stamps = Path(folder, "times.json")
                _run(case, [], _arguments(case, repaired, steps), {"PLANTED_TIMES": str(stamps)})
                found.append(_step(case, json.loads(stamps.read_text())))
    return times


def profiled(case: Case, output: Path, steps: int | None = None, *, repaired: bool) -> tuple[dict[str, Any], Path]:
    """Run a program under ``stepscope run`` with its default options; return its findings' document and its run."""
    shutil.rmtree(output, ignore_errors=True)
    _run(case, ["-m", "stepscope", "run", "-o", str(output)], _arguments(case, repaired, steps), {})
    (run,) = (path for path in output.iterdir() if path.is_dir() and not path.name.startswith("."))
    document = run / "cluster" / "findings.json" if case.ranks > 1 else run / "rank0" / "results" / "findings.json"
    found = json.loads(document.read_text()) if document.exists() else {}
    return (found if isinstance(found, dict) else {"findings": found}), run


def _arguments(case: Case, repaired: bool, steps: int | None) -> list[str]:
    counted = [] if steps is None else ["--steps", str(steps)]
    return [str(case.path), *(["--repaired"] if repaired else []), *counted]


def _step(case: Case, stamps: list[tuple[int, int]]) -> float:
    """Return the mean step, ns: wall time less the waits of the main thread for a core."""
    kept = stamps[int(len(stamps) * WARM_UP) :]
    (first, first_delay), (last, last_delay) = kept[0], kept[-1]
    waited = 0 if case.waits else last_delay - first_delay
    return (last - first - waited) / (len(kept) - 1)


def _run(case: Case, runner: list[str], arguments: list[str], environment: dict[str, str]) -> None:
    cores = sorted(os.sched_getaffinity(0))[: case.cores]
    shared = {
        name: value for name, value in os.environ.items() if name not in {"OMP_NUM_THREADS", "RANK", "WORLD_SIZE"}
    }
    shared |= {"PYTHONPATH": f"{ROOT / 'src'}", **environment}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    elsewhere = Path(tempfile.mkdtemp())  # frameworks write logs where they run
    for rank in range(case.ranks):
        ranked = {} if case.ranks == 1 else _rank(rank, case.ranks, port)
        # Each rank has a core of its own: threads of both on both cores would only wait for each other.
        own = cores if case.ranks == 1 else [cores[rank % len(cores)]]
        command = ["taskset", "-c", ",".join(map(str, own)), python_of(case.framework), *runner, *arguments]
        processes.append(
            subprocess.Popen(
                command, env=shared | ranked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=elsewhere
            )
        )
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    shutil.rmtree(elsewhere, ignore_errors=True)
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            message = f"{' '.join(arguments)} ended with {process.returncode}:\n{output[-3000:]}"
            raise RuntimeError(message)


def _rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
