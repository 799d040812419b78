"""Every reader keeps the contract: complete tables, one-line errors, every loss counted, whatever the file."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope import read
from stepscope.collect.journal.journal import Journal
from stepscope.errors import InputError, UsageError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.cupti_layout import Kind
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Frames, conform
from tests.conftest import files_in
from tests.sizes import Size
from tests.unit import ascend_build, recorder_build
from tests.unit.cupti_build import File

DATA = Path(__file__).resolve().parents[1] / "data"


def a_journal(directory: Path) -> Path:
    journal = Journal(directory / "journal.ssj")
    for i in range(200):
        journal.span(f"span {i % 7}", "annotation", i * 100, i * 100 + 50, {"i": i})
        if i % 40 == 0:
            journal.step(i // 40, i * 100, i * 100 + 4_000, "declared")
            journal.flush()
    journal.counter("loss", 0.5)
    journal.close()
    return journal.path


def a_kineto_trace(directory: Path) -> Path:
    path = directory / "trace.json"
    path.write_bytes(gzip.decompress((DATA / "kineto" / "cuda_event_sync.json.gz").read_bytes()))
    return path


def a_mindspore_directory(directory: Path) -> Path:
    return Path(shutil.copytree(DATA / "mindspore_cpu" / "collected_graph", directory / "mindspore"))


def an_ascend_directory(directory: Path) -> Path:
    return ascend_build.capture(directory, kernels=10)


def a_cupti_file(directory: Path) -> Path:
    file = File(directory / "cupti.ssc")
    file.names([(0xABC0, "_Z3addPf", "add(float*)")])
    for i in range(4):
        calls = [
            file.record(Kind.RUNTIME, callback=211, start=at, end=at + 2, process=1, thread=2, correlation=at)
            for at in range(100 * i + 1, 100 * i + 21)
        ]
        kernels = [
            file.record(Kind.CONCURRENT_KERNEL, start=at + 5, end=at + 9, correlation=at, name=0xABC0, stream=at % 3)
            for at in range(100 * i + 1, 100 * i + 21)
        ]
        file.buffer(*calls, *kernels)
    return file.close()


def a_recorders_file(directory: Path) -> Path:
    file = recorder_build.File(directory / "recorder.ssr")
    threads = [file.thread(4711, 1, "python"), file.thread(4712, 2)]
    for i in range(40):
        for thread in threads:
            thread.begin(1_000 * i, f"aten::op{i % 3}", sequence=i, inputs=recorder_build.tensor(6, [i % 4, 2], [2, 1]))
            thread.begin(1_000 * i + 100, "aten::inner", forward=1 if thread.torch == 2 else None, sequence=i)
            thread.memory(1_000 * i + 150, 64 * i, 128)
            thread.end(1_000 * i + 200)
            thread.end(1_000 * i + 300)
        if i % 10 == 0:
            file.clock(1_000 * i + 400)
            for thread in threads:
                thread.flush() if i % 20 else thread.next_chunk()
    return file.close(50_000)


def a_fluid_profile(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "paddle" / "fluid185" / "all_total.pb", directory / "profile"))


def a_paddle_trace(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "paddle" / "paddle331_static.pb", directory / "paddle_trace.pb"))


def a_paddle_json(directory: Path) -> Path:
    path = directory / "paddle_trace.json"
    path.write_bytes(gzip.decompress((DATA / "paddle" / "paddle331_static.json.gz").read_bytes()))
    return path


def a_memory_profile(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "pprof" / "memory.pb.gz", directory / "memory.pb.gz"))


def an_xplane_file(directory: Path) -> Path:
    return Path(shutil.copy(DATA / "xplane" / "steps.xplane.pb", directory / "host.xplane.pb"))


#: A small capture of every format, by the format's name.
SAMPLES: dict[str, Callable[[Path], Path]] = {
    "journal": a_journal,
    "cupti": a_cupti_file,
    "recorder": a_recorders_file,
    "kineto": a_kineto_trace,
    "mindspore": a_mindspore_directory,
    "ascend": an_ascend_directory,
    "fluid": a_fluid_profile,
    "paddle": a_paddle_trace,
    "paddle_json": a_paddle_json,
    "xplane": an_xplane_file,
    "pprof": a_memory_profile,
}


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
    assert frames["spans"].height > 30 or frames["live_memory"].height > 5
    assert frames["losses"].filter(pl.col("severity") != "info").is_empty()
    (found,) = look(sample)
    assert found.format in read.READERS


def test_the_same_file_gives_the_same_tables(sample: Path) -> None:
    one, other = read_files([sample]), read_files([sample])
    assert all(one[name].equals(other[name]) for name in TABLES)


def test_rank_and_host_can_be_told(sample: Path) -> None:
    frames = read_files([sample], rank=5, host="node-9")
    # A memory profile has no tracks.
    assert set(frames["tracks"]["rank"]) == {5} or frames["live_memory"].height
    assert set(frames["tracks"]["host"].cast(pl.String)) == {"node-9"} or frames["live_memory"].height


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


def test_random_damage(sample: Path, tmp_path: Path, size: Size) -> None:
    chance = random.Random(2)

    def damage(content: bytes) -> bytes:
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 5)):
            start = chance.randrange(len(damaged))
            damaged[start : start + chance.randint(0, 8)] = chance.randbytes(chance.randint(0, 8))
        return bytes(damaged)

    for _ in range(size.many(60)):
        attempt(damaged_copy(sample, tmp_path / f"damaged{sample.suffix}", damage, chance))


def test_what_cannot_be_read_is_one_line(sample: Path, tmp_path: Path) -> None:
    (tmp_path / f"directory{sample.suffix}").mkdir()
    os.mkfifo(tmp_path / f"pipe{sample.suffix}")
    for name in ("directory", "pipe", "absent"):
        assert attempt(tmp_path / f"{name}{sample.suffix}") is None
    with pytest.raises(UsageError, match="No file to read"):
        read_files([])
