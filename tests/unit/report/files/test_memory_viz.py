"""Snapshots for PyTorch's memory_viz: its own functions read them, and so does stepscope, with the same events."""

from __future__ import annotations

import base64
import json
import pickle
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.report.files.memory_viz import MemoryViz
from stepscope.report.protocol import Source
from stepscope.trace.tables import Frames, lazy
from tests.golden import hostile
from tests.unit.read.memory_snapshot import snapshot_build


def written(frames: Frames, directory: Path) -> tuple[dict[str, Any], Path, Path]:
    snapshot, page = MemoryViz().write(Source(lazy(frames), {}, {}), directory)
    found: dict[str, Any] = pickle.loads(snapshot.read_bytes())
    return found, snapshot, page


@pytest.fixture
def taken(tmp_path: Path) -> Frames:
    return read_files([snapshot_build.written(tmp_path / "given.pickle")])


def test_the_history_is_the_allocators(taken: Frames, tmp_path: Path) -> None:
    found, _, _ = written(taken, tmp_path)
    wanted = [one for one in snapshot_build.trained().trace if not one["action"].startswith("segment")]
    keys = ("action", "addr", "size", "stream", "frames")
    (history,) = found["device_traces"]
    assert [tuple(one[key] for key in keys) for one in history] == [tuple(one[key] for key in keys) for one in wanted]
    assert [one["time_us"] for one in history] == [one["time_us"] for one in wanted]


def test_segments_whose_blocks_are_known_are_tiled(taken: Frames, tmp_path: Path) -> None:
    found, _, _ = written(taken, tmp_path)
    given = {one["address"]: one for one in snapshot_build.trained().snapshot()["segments"]}
    assert found["segments"]
    for segment in found["segments"]:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        ends = [block["address"] + block["size"] for block in blocks]
        assert [segment["address"], *ends[:-1]] == [block["address"] for block in blocks]
        assert segment["requested_size"] == given[segment["address"]]["requested_size"]
    # The parameters were taken before the history began: where they lie in their segment is unknown.
    assert len(found["segments"]) == len(given) - 1


def test_torchs_own_functions_read_it(taken: Frames, tmp_path: Path) -> None:
    memory_viz = pytest.importorskip("torch.cuda._memory_viz")
    found, _, page = written(taken, tmp_path)
    told = memory_viz.trace(found)
    taken_rows = taken["allocations"].filter(pl.col("address").is_not_null() & (pl.col("bytes") > 0))
    assert len(re.findall(r"^\w+ = \w+\[", told, flags=re.MULTILINE)) == taken_rows.height
    # and its own page of the snapshot holds the same
    theirs, ours = (_embedded(text) for text in (memory_viz.trace_plot(found), page.read_text()))
    assert pickle.loads(theirs) == pickle.loads(ours) == found


def _embedded(page: str) -> bytes:
    match = re.search(r"\[\{\"name\".*?\}\]", page)
    assert match is not None
    return base64.b64decode(json.loads(match[0])[0]["base64"])


def test_stepscope_reads_it_back(taken: Frames, tmp_path: Path) -> None:
    _, snapshot, _ = written(taken, tmp_path)
    columns = ("ts", "device", "address", "bytes", "stream", "unused")
    rows, again = (
        frames["allocations"].filter(pl.col("address").is_not_null()).select(columns)
        for frames in (taken, read_files([snapshot]))
    )
    assert again.equals(rows)


def test_without_memory_it_is_empty(tmp_path: Path) -> None:
    frames = hostile.frames()
    found, _, _ = written({**frames, "allocations": frames["allocations"].clear()}, tmp_path)
    assert found == {"segments": [], "device_traces": []}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    found, _, page = written(hostile.frames(), tmp_path)
    assert [[one["action"] for one in history] for history in found["device_traces"]] == [
        ["free_requested", "free_completed"]
    ]
    assert "<img" not in page.read_text()


def test_other_devices_come_behind_the_gpus(tmp_path: Path) -> None:
    frames = hostile.frames()
    rows = [(10, "cpu", 1 << 20, 64), (20, "cuda:1", -(1 << 62), 128), (30, "cpu", 1 << 20, -64)]
    taken = pl.DataFrame(rows, schema=["ts", "device", "address", "bytes"], orient="row")
    made = {**frames, "allocations": pl.concat([frames["allocations"].clear(), taken], how="diagonal_relaxed")}
    found, _, _ = written(made, tmp_path)
    assert [[one["action"] for one in history] for history in found["device_traces"]] == [
        [],
        ["alloc"],
        ["alloc", "free_requested", "free_completed"],
    ]
    assert found["device_traces"][1][0]["addr"] == (1 << 64) - (1 << 62)
