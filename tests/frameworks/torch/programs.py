"""Running programs under stepscope and looking at what they left, without stepscope's readers of captures."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.losses import LossLedger
from tests import forkserver
from tests.frameworks.torch.recorder_file import read

#: A program that trains; steps, and what happens in one of them, come from its arguments.
TRAINING = """
import os, signal, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""

LOOP = (
    TRAINING
    + """
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    step()
print("trained", number + 1)
"""
)


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a program and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without what a launcher, a terminal or a user set for it."""
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STEPSCOPE_RUN_ID", "NO_COLOR", "FORCE_COLOR", "KINETO_LOG_LEVEL")
    kept = {key: value for key, value in os.environ.items() if key not in drop}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end and return what it said."""
    options = {"env": environment(), "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([sys.executable, *map(str, arguments)], check=False, **options)


def stepscope_run(output: Path, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``stepscope run --later`` to its end and return what it said."""
    return python("-m", "stepscope", "run", "--later", "--output", output, *arguments, **options)


def forked(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python like :func:`python`, in a child that has loaded the framework: its start is not under test."""
    return forkserver.run(*arguments, **{"env": environment(), **options})


def forked_run(output: Path, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``stepscope run --later`` like :func:`stepscope_run`, in a child that has loaded the framework."""
    return forked("-m", "stepscope", "run", "--later", "--output", output, *arguments, **options)


def free_port() -> str:
    """Return a port of this machine at which ranks can meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def runs(output: Path) -> list[Path]:
    """Return the runs below ``output``, oldest first."""
    found = [path for path in output.iterdir() if path.is_dir()]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def manifest(run: Path, rank: int = 0) -> dict[str, Any]:
    """Return a rank's manifest."""
    loaded: dict[str, Any] = json.loads((run / f"rank{rank}" / "manifest.json").read_text())
    return loaded


def spawned_ranks(output: Path, said: str, found_by: str) -> Path:
    """Hold that two ranks, which a program spawned, have one run that its own process names; return it."""
    (run,) = runs(output)
    assert said.endswith(f"stepscope: Recorded. Next: stepscope report {run}\n")
    assert sorted(path.name for path in run.iterdir()) == ["rank0", "rank1"]
    assert not list(output.glob(".*"))
    for number in (0, 1):
        found = manifest(run, number)
        assert (found["rank"], found["world_size"], found["door"]) == (number, 2, "run")
        assert found["rank_found_by"] == found_by
    return run


def recorded_spans(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    """Return the events of a rank that last, as Kineto writes them, whoever recorded them."""
    captures = run / f"rank{rank}" / "capture"
    if (captures / "recorder.ssr").exists():
        return [*_native_spans(captures / "recorder.ssr"), *_marks(captures / "journal.ssj")]
    document = json.loads((captures / "kineto_0.json").read_text())
    return [event for event in document["traceEvents"] if event.get("ph") == "X"]


def _native_spans(path: Path) -> list[dict[str, Any]]:
    """Return the operators and ranges that have ended; times in µs of CLOCK_MONOTONIC."""
    found = []
    recording = read(path)
    for thread in recording.threads:
        for operator in thread.operators:
            if operator.end is None:
                continue
            begin, end = recording.nanoseconds(operator.begin), recording.nanoseconds(operator.end)
            category = {7: "user_annotation", 15: "python_function"}.get(operator.scope, "cpu_op")
            times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
            found.append({"name": operator.name, "cat": category, "tid": thread.native, "args": {}, **times})
    return found


def _marks(path: Path) -> list[dict[str, Any]]:
    """Return the steps of the journal as torch.profiler marks them."""
    blocks = [json.loads(unpack(block)).get("steps") for block in read_frames(path, LossLedger(path.name))]
    steps = [step for rows in blocks if rows for step in zip(rows["number"], rows["start"], rows["dur"], strict=True)]
    mark = {"cat": "user_annotation", "tid": 0, "args": {}}
    return [{"name": f"ProfilerStep#{step}", "ts": start / 1e3, "dur": dur / 1e3, **mark} for step, start, dur in steps]


def names(events: list[dict[str, Any]], category: str) -> Counter[str]:
    """Count the names of the events of a category."""
    return Counter(event["name"] for event in events if event.get("cat") == category)


def recorded_steps(events: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the steps marked in a recording, in order of time."""
    marks = [event for event in events if event["name"].startswith("ProfilerStep#")]
    return [int(event["name"].split("#")[1]) for event in sorted(marks, key=lambda event: event["ts"])]
