"""What the loggers of a training have kept, read from their own files."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from stepscope.run import RankRun

#: Name of a figure, without what a trainer puts before it → step → value.
Points: TypeAlias = dict[str, dict[int, float]]


def keep_here(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let W&B and MLflow write below a directory, and ask no server."""
    import mlflow
    import wandb

    kept = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(directory), "MLFLOW_RUN_ID": ""}
    kept |= {"MLFLOW_TRACKING_URI": f"file:{directory}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_RUN_ID")
    # Both keep what they were told first in a process.
    wandb.teardown()
    mlflow.set_tracking_uri(kept["MLFLOW_TRACKING_URI"])


def in_tensorboard(directory: Path) -> Points:
    """Return our figures of the only file of events."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = directory.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    return {
        tag.rpartition("stepscope/")[2]: {point.step: point.value for point in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
        if "stepscope/" in tag
    }


def in_mlflow(directory: Path) -> Points:
    """Return our figures of the only run of a file store: a file each metric, a line each value (time, value, step)."""
    found: Points = defaultdict(dict)
    for file in directory.glob("mlruns/*/*/metrics/**/*"):
        name = file.as_posix().rpartition("stepscope/")[2]
        for line in file.read_text().splitlines() if file.is_file() and "stepscope/" in file.as_posix() else ():
            _, value, step = line.split()
            assert int(step) not in found[name]
            found[name][int(step)] = float(value)
    return found


def in_wandb(directory: Path, axis: str) -> Points:
    """Return our figures of the only offline run, by the figure that is their axis."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # the process that writes the file goes on for a moment after the run
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    found: Points = defaultdict(dict)
    for content in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(content)
        items = record.history.item if record.WhichOneof("record_type") == "history" else ()
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for name, value in row.items():
            if "stepscope/" in name and name != axis:
                found[name.rpartition("stepscope/")[2]][int(row[axis])] = value
    return found


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B: LevelDB's log format, after a head of 7 bytes."""
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        if -at % 32768 < 7 and at % 32768:  # no room for a head in this block
            at += -at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def check_steps(points: Mapping[str, Mapping[int, float]], rank: RankRun, first: int) -> None:
    """Each recorded step has its time, and parts that add up to it; ``first`` is the logger's number of step 0."""
    rows = rank.tables["steps"].select("number", "dur").collect().rows()
    wanted = {number + first: dur / 1e9 for number, dur in rows}
    assert points["step/seconds"] == pytest.approx(wanted)
    assert points["step/data_wait_seconds"].keys() <= wanted.keys()
    for kind in ("part", "phase"):
        parts: list[Mapping[int, float]] = [
            values for name, values in points.items() if name.startswith(f"step/{kind}_seconds/")
        ]
        assert parts
        sums = {step: sum(part[step] for part in parts) for step in wanted}
        assert sums == pytest.approx(wanted, rel=1e-5)  # TensorBoard keeps 32 bits


def check_memory(points: Mapping[str, Mapping[int, float]], rank: RankRun) -> None:
    """The largest peak of a step is at most that of the whole recording."""
    (peak,) = rank.summary.memory
    values: Any = points[f"step/memory_peak_bytes/{peak.device}"].values()
    assert peak.allocated is not None
    assert 0 < max(values) <= peak.allocated
