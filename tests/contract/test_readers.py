"""Every reader keeps the contract: complete tables, one-line errors, every loss counted, whatever the file."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope import read
from stepscope.errors import InputError, UsageError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Frames, conform
from tests.conftest import files_in
from tests.fuzz import Mutator, results_of
from tests.samples import SAMPLES
from tests.sizes import Size


def damaged_copy(sample: Path, target: Path, change: Callable[[bytes], bytes], chance: random.Random) -> Path:
    """Copy a capture with one of its files changed."""
    if not sample.is_dir():
        target.write_bytes(change(sample.read_bytes()))
        return target
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(sample, target)
    path = chance.choice(files_in(target))
    path.write_bytes(change(path.read_bytes()))
    return target


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return SAMPLES[request.param](tmp_path)


def check(frames: Frames) -> None:
    """What holds for the tables of any file."""
    assert list(frames) == list(TABLES)
    for name, frame in frames.items():
        assert conform(name, frame).equals(frame), name
    spans, tracks = frames["spans"], frames["tracks"]
    assert spans["id"].to_list() == list(range(spans.height))
    assert set(spans["track"]) | set(frames["counters"]["track"]) <= set(tracks["id"])
    assert tracks["id"].is_unique().all()
    assert (spans["dur"] >= 0).all()
    assert set(spans["parent"].drop_nulls()) <= set(spans["id"])
    for name in ("kernels", "operators", "collectives", "arguments"):
        assert set(frames[name]["span"]) <= set(spans["id"]), name
    children = spans.filter(pl.col("parent").is_not_null()).join(
        spans.select(parent="id", start="ts", end=pl.col("ts") + pl.col("dur"), above="depth"), on="parent"
    )
    inside = (pl.col("start") <= pl.col("ts")) & (pl.col("ts") + pl.col("dur") <= pl.col("end"))
    assert children.filter(~inside | (pl.col("depth") != pl.col("above") + 1)).is_empty()


def attempt(path: Path) -> Frames | None:
    """Read a file that may be damaged: tables that hold, or an error of ours in one line."""
    try:
        frames = read_files([path])
    except InputError as error:
        assert str(error).count("\n") == 0
        assert str(path.name) in str(error)
        return None
    check(frames)
    return frames


def test_every_reader_is_tested() -> None:
    assert set(SAMPLES) == set(read.READERS)


def test_a_sound_file(sample: Path) -> None:
    frames = read_files([sample])
    check(frames)
    least = (("spans", 30), ("live_memory", 5), ("allocations", 30), ("samples", 30))
    assert any(frames[name].height > rows for name, rows in least)
    assert frames["losses"].filter(pl.col("severity") != "info").is_empty()
    (found,) = look(sample)
    assert found.format in read.READERS


def test_the_same_file_gives_the_same_tables(sample: Path) -> None:
    one, other = read_files([sample]), read_files([sample])
    assert all(one[name].equals(other[name]) for name in TABLES)


def test_rank_and_host_can_be_told(sample: Path) -> None:
    frames = read_files([sample], rank=5, host="node-9")
    # Profiles of memory and of stacks have no tracks.
    without = frames["live_memory"].height or frames["samples"].height
    assert set(frames["tracks"]["rank"]) == {5} or without
    assert set(frames["tracks"]["host"].cast(pl.String)) == {"node-9"} or without


def test_progress_grows_to_the_size_of_the_file(sample: Path) -> None:
    calls: list[tuple[int, int]] = []
    read_files([sample], progress=lambda done, total: calls.append((done, total)))
    size = sum(capture.size for capture in look(sample))
    assert calls[-1] == (size, size)
    assert calls == sorted(calls)


def test_two_files_of_one_rank_lie_on_one_time_line(tmp_path: Path) -> None:
    paths = [make(tmp_path) for make in SAMPLES.values()]
    frames = read_files(paths)
    check(frames)
    assert frames["spans"].height == sum(read_files([path])["spans"].height for path in paths)


def test_cut_anywhere(sample: Path, tmp_path: Path, size: Size) -> None:
    chance = random.Random(1)
    whole = read_files([sample])["spans"].height
    end = max(path.stat().st_size for path in files_in(sample))
    for length in sorted([0, 1, 5, end - 1, *chance.sample(range(end), size.many(40))]):
        cut = damaged_copy(sample, tmp_path / f"cut{sample.suffix}", lambda content, at=length: content[:at], chance)  # type: ignore[misc]
        frames = attempt(cut)
        if frames is not None:
            assert frames["spans"].height <= whole
            # A directory may lose a whole line of one file, which no count betrays.
            assert frames["losses"].height or length > end - 3 or sample.is_dir()


def test_damage(sample: Path, tmp_path: Path, size: Size) -> None:
    """Tables, results and summary of what is left, or one line; `make fuzz` tries more."""
    mutator = Mutator(sample, tmp_path / "damaged", seed=2)
    for number in range(size.many(100)):
        frames = attempt(mutator.damaged())
        if frames is not None and number % 4 == 0:
            results_of(frames)


def test_what_cannot_be_read_is_one_line(sample: Path, tmp_path: Path) -> None:
    (tmp_path / f"directory{sample.suffix}").mkdir()
    os.mkfifo(tmp_path / f"pipe{sample.suffix}")
    for name in ("directory", "pipe", "absent"):
        assert attempt(tmp_path / f"{name}{sample.suffix}") is None
    with pytest.raises(UsageError, match="No file to read"):
        read_files([])
