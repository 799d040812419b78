"""Profiles in pprof's form: a real one of memory, whole and damaged, those of time, and what is none."""

from __future__ import annotations

import gzip
import random
import shutil
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.memory.memory_profile import memory_profile
from stepscope.analyse.stacks.python_lines import python_lines
from stepscope.errors import InputError
from stepscope.read import pprof, read_files
from stepscope.read.sniff import look, ranks
from stepscope.report.timeline.perfetto.protobuf import block, integer
from stepscope.trace import tables
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames, conform
from tests import pprof_schema
from tests.sizes import Size

DATA = Path(__file__).resolve().parents[2] / "data"
SAMPLE = DATA / "pprof" / "memory.pb.gz"


def check(frames: Frames) -> None:
    live = frames["live_memory"]
    assert conform("live_memory", live).equals(live)
    assert set(live["stack"].drop_nulls()) <= set(frames["stacks"]["id"])


def attempt(path: Path) -> Frames | None:
    """Read a file that may be damaged: tables that hold, or an error of ours in one line."""
    try:
        frames = read_files([path])
    except InputError as error:
        assert str(error).count("\n") == 0
        return None
    check(frames)
    return frames


def test_what_is_alive_is_what_the_program_kept() -> None:
    # Given three weights of 256 × 512 floats, a batch of 1000 integers and a sum
    frames = read_files([SAMPLE])
    check(frames)
    assert frames["losses"].is_empty()
    buffers = frames["live_memory"].filter(pl.col("kind") == "buffer")
    assert buffers["bytes"].sum() == 3 * 256 * 512 * 4 + 1000 * 4 + 4
    assert buffers["count"].sum() == 5
    assert buffers["device"].cast(pl.String).unique().to_list() == ["cpu"]
    # Then each was taken by a line of the program, however many of JAX's own lie inside
    found = memory_profile(tables.lazy(frames)).filter(pl.col("Kind") == "buffer")
    assert found.group_by("Taken At", maintain_order=True).agg(pl.col("Count").sum()).rows() == [
        ("train.py(6): <listcomp>", 3),
        ("train.py(9): batch", 1),
        ("train.py(13): <module>", 1),
    ]
    assert found["Size(MB)"].to_list()[:2] == [1.0, 0.5]
    assert found["Ratio(%)"].sum() == pytest.approx(100)
    assert all(
        text.split("\n")[0].startswith("/opt/python/lib/python3/site-packages/jax/") for text in found["Call Stack"]
    )


def test_a_profile_is_known_by_its_first_bytes_plain_or_gzip(tmp_path: Path) -> None:
    plain = tmp_path / "memory.prof"
    plain.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    assert look(SAMPLE)[0].format == look(plain)[0].format == "pprof"
    assert read_files([plain])["live_memory"].equals(read_files([SAMPLE])["live_memory"])


def test_other_formats_are_no_profiles() -> None:
    others = [*DATA.glob("paddle/*.pb"), *DATA.glob("xplane/*.pb"), *DATA.glob("kineto/*.gz")]
    assert len(others) > 3
    for path in others:
        content = path.read_bytes()
        assert not pprof.is_profile(gzip.decompress(content) if path.suffix == ".gz" else content), path


def test_a_profile_lies_beside_the_capture_that_it_belongs_to(tmp_path: Path) -> None:
    directory = tmp_path / "jax"
    directory.mkdir()
    trace = directory / "node.xplane.pb"
    shutil.copy(DATA / "xplane" / "steps.xplane.pb", trace)
    assert [capture.root for capture in look(directory)] == [trace]
    shutil.copy(SAMPLE, directory / pprof.NAME)
    found = ranks([look(directory)]).captures[0]
    assert [capture.root for capture in found] == [trace, directory / pprof.NAME]
    frames = read_files([directory])
    check(frames)
    assert frames["spans"].height
    assert frames["live_memory"].height == 10


def test_profiles_of_several_parts_keep_their_stacks(tmp_path: Path) -> None:
    other = Path(shutil.copy(SAMPLE, tmp_path / "memory.pb.gz"))
    frames = read_files([SAMPLE, other])
    check(frames)
    assert frames["live_memory"].height == 20
    found = memory_profile(tables.lazy(frames))
    assert found.filter(pl.col("Taken At") == "train.py(9): batch", pl.col("Kind") == "buffer").height == 2


def test_cut_at_many_lengths(tmp_path: Path, size: Size) -> None:
    plain, path = gzip.decompress(SAMPLE.read_bytes()), tmp_path / "memory.pb"
    whole = read_files([SAMPLE])["live_memory"].height
    for length in size.lengths(len(plain), 7):
        path.write_bytes(plain[:length])
        frames = attempt(path)
        if frames is not None:
            assert frames["live_memory"].height <= whole
            assert frames["losses"].height, length


def test_a_compressed_file_that_is_cut(tmp_path: Path) -> None:
    content, path = SAMPLE.read_bytes(), tmp_path / "memory.pb.gz"
    for length in range(0, len(content), 11):
        path.write_bytes(content[:length])
        frames = attempt(path)
        assert frames is None or frames["losses"].height


@pytest.mark.parametrize("seed", range(5))
def test_random_damage(seed: int, tmp_path: Path) -> None:
    plain, path, chance = gzip.decompress(SAMPLE.read_bytes()), tmp_path / "memory.pb", random.Random(seed)
    for _ in range(100):
        wrong = bytearray(plain)
        for _ in range(chance.choice((1, 2, 8, 64))):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        path.write_bytes(wrong)
        attempt(path)


def profile(*fields: bytes, units: tuple[bytes, ...] = (b"count", b"bytes")) -> bytes:
    texts = (b"", b"allocations", b"space", *units)
    types = [block(1, integer(1, 1 + place) + integer(2, 3 + place)) for place in range(len(units))]
    return b"".join([*types, *fields, *(block(6, text) for text in texts)])


def test_a_profile_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pb"
    path.write_bytes(profile(block(2, integer(2, 1) + integer(2, 2)), units=(b"count", b"requests")))
    with pytest.raises(InputError, match="is a profile of count, requests, neither of memory nor of time"):
        read_files([path])


def of_time(*stacks: tuple[list[int], int, int, str], unit: str = "microseconds") -> bytes:
    """A profile of the CPU, written by Google's library: stacks of functions, looks, time, thread."""
    made = pprof_schema.profile()()
    texts = ["", "samples", "count", "cpu", unit, "thread", "a.py", "f0", "f1", "f2"]
    made.time_nanos = 5_000
    for kind, of in ((1, 2), (3, 4)):
        made.sample_type.add(type=kind, unit=of)
    for number in (1, 2, 3):
        made.function.add(id=number, name=6 + number, filename=6)
        made.location.add(id=number).line.add(function_id=number, line=10 * number)
    for places, looks, time, thread in stacks:
        texts.append(thread)
        sample = made.sample.add(location_id=places, value=[looks, time])
        sample.label.add(key=5, str=len(texts) - 1)
    made.string_table.extend(texts)
    return bytes(made.SerializeToString())


def test_a_profile_of_time_becomes_samples(tmp_path: Path) -> None:
    path = tmp_path / "cpu.pb"
    path.write_bytes(of_time(([3, 1], 4, 40, "MainThread"), ([2, 1], 1, 10, "MainThread"), ([1], 2, 20, "other")))
    frames = read_files([path])
    check(frames)
    assert frames["losses"].is_empty()
    stacks = {
        row["id"]: [(one["function"], one["line"]) for one in row["frames"]]
        for row in frames["stacks"].iter_rows(named=True)
    }
    rows = frames["samples"].with_columns(pl.col("name").cast(str)).select("ts", "dur", "count", "name", "stack").rows()
    assert [(*row, stacks[stack]) for *row, stack in rows] == [
        (5_000, 40_000, 4, "MainThread", [("f2", 30), ("f0", 10)]),
        (5_000, 10_000, 1, "MainThread", [("f1", 20), ("f0", 10)]),
        (5_000, 20_000, 2, "other", [("f0", 10)]),
    ]
    lines = python_lines(tables.lazy(frames)).filter(pl.col("Samples") > 0)
    assert dict(lines.select("Line", "Self(us)").rows()) == {30: 40.0, 20: 10.0, 10: 20.0}


def test_names_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "cpu.pb"
    path.write_bytes(of_time(([2, 1], 4, 40, "\x1b[31m<b>=1\n")).replace(b"f1", b"\x1b<"))
    frames = read_files([path])
    assert [one["function"] for one in frames["stacks"]["frames"][0]] == ["\x1b<", "f0"]
    assert frames["samples"]["name"].cast(pl.String).to_list() == ["\x1b[31m<b>=1\n"]


def test_a_damaged_profile_of_time(tmp_path: Path) -> None:
    path = tmp_path / "cpu.pb"
    whole = of_time(*(([number % 3 + 1, 1], 1, number, "t") for number in range(50)))
    chance = random.Random(4)
    for _ in range(60):
        wrong = bytearray(whole[: chance.randrange(1, len(whole) + 1)])
        wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        path.write_bytes(wrong)
        attempt(path)


def test_a_sample_without_stack_or_size(tmp_path: Path) -> None:
    path = tmp_path / "heap.pb"
    path.write_bytes(profile(block(2, integer(2, 3) + integer(2, 300)), block(2, integer(2, 3))))
    ledger = LossLedger("heap.pb")
    live = pprof.read(path, ledger)["live_memory"]
    assert live.cast({"kind": pl.String}).rows() == [("memory", None, 3, 300, None)]
    assert [(loss.what, loss.count) for loss in ledger.rows()] == [("event_damaged", 1)]


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ("TFRT_CPU_0", "cpu"),
        ("TFRT_CPU_3", "cpu:3"),
        ("CudaDevice(id=1)", "cuda:1"),
        ("gpu:0", "cuda:0"),
        ("RocmDevice(id=2)", "rocm:2"),
        ("TPU_0(process=0,(0,0,0,0))", "tpu:0"),
        ("something", "something"),
        (None, None),
    ],
)
def test_devices_have_the_names_of_the_tables(said: str | None, device: str | None) -> None:
    assert pprof.device_name(said) == device
