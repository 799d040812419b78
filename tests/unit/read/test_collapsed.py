"""Collapsed stacks: what py-spy wrote, our own export, and counts without a rate."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.errors import NotATraceError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.report.protocol import Source
from stepscope.report.registry import FORMATS
from stepscope.trace.tables import Frames

DATA = Path(__file__).parents[2] / "data"
PYSPY = DATA / "collapsed" / "pyspy.50hz.collapsed.txt"


def stacks(frames: Frames) -> Counter[tuple[str, tuple[tuple[str | None, int | None, str], ...]]]:
    """Return the time of each stack of each thread, ns."""
    frames_of = {
        number: tuple((one["file"], one["line"], one["function"]) for one in stack)
        for number, stack in frames["stacks"].select("id", "frames").iter_rows()
    }
    found: Counter[tuple[str, tuple[tuple[str | None, int | None, str], ...]]] = Counter()
    for name, stack, dur in frames["samples"].select(pl.col("name").cast(pl.String), "stack", "dur").iter_rows():
        found[name, frames_of.get(stack, ())] += dur
    return found


def losses(frames: Frames) -> set[str]:
    return set(frames["losses"]["what"].cast(pl.String))


def test_py_spys_raw_form_gives_its_own_counts() -> None:
    wanted: Counter[str] = Counter()
    for line in PYSPY.read_text().splitlines():
        parts, _, count = line.rpartition(" ")
        wanted[parts.split(";")[0].partition(": ")[2]] += int(count)
    run = stepscope.open(PYSPY)
    samples = run.tables["samples"].collect().with_columns(pl.col("name").cast(pl.String))
    rows = samples.group_by("name").agg(pl.col("count").sum(), pl.col("dur").sum()).rows()
    assert {name: count for name, count, _ in rows} == wanted == {"MainThread": 120, "loader": 123}
    assert {name: dur for name, _, dur in rows} == {name: count * 20_000_000 for name, count in wanted.items()}
    assert samples["state"].null_count() == samples.height
    lines = run.result("python_lines")
    assert isinstance(lines, pl.DataFrame)
    assert lines["Samples"].sum() == samples["count"].sum()


def test_frames_have_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.100hz.collapsed.txt"
    path.write_text('main (a b.py:3);step (C:\\x.py:9);<built-in> 4\nprocess 12:"x";thread (0x7f): w;f (g) 1\n')
    frames = read_files([path])
    assert stacks(frames) == {
        ("all threads", ((None, None, "<built-in>"), ("C:\\x.py", 9, "step"), ("a b.py", 3, "main"))): 40_000_000,
        ("w", (("g", None, "f"),)): 10_000_000,
    }
    assert frames["samples"].filter(pl.col("process") == 12)["thread"].to_list() == [0x7F]


@pytest.mark.parametrize(
    ("name", "content", "each"),
    [
        ("train.100hz.txt", "a;b 3\n", 10_000_000),
        ("train_25Hz.folded", "a;b 3\n", 40_000_000),
        ("a.txt", "# 200 hz\na;b 3\n", 5_000_000),
        ("stacks.collapsed.txt", "main;a;b 3\n", 1_000),
    ],
)
def test_the_rate_is_what_the_file_says(name: str, content: str, each: int, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert look(path)[0].format == "collapsed"
    assert read_files([path])["samples"]["dur"].to_list() == [3 * each]


@pytest.mark.parametrize("name", ["train.txt", "train100hz.txt", "a.0hz.txt"])
def test_counts_without_a_rate_have_no_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("a;b 3\n")
    with pytest.raises(NotATraceError, match=r"does not say how long.*NAME\.100hz\.txt"):
        read_files([path])


def test_our_own_export_is_read_back(tmp_path: Path) -> None:
    given = stepscope.open(DATA / "speedscope" / "pyspy.speedscope.json").tables
    (path,) = FORMATS["collapsed"].write(Source(given, {}, {}), tmp_path)
    frames = read_files([path])
    samples = given["samples"].collect()
    assert frames["samples"]["dur"].sum() == pytest.approx(samples["dur"].sum(), rel=0.01)
    names = {function for _, stack in stacks(frames) for _, _, function in stack}
    known = {one["function"] for (stack,) in given["stacks"].select("frames").collect().iter_rows() for one in stack}
    assert names <= known


def test_a_dump_of_one_moment_says_what_to_do(tmp_path: Path) -> None:
    thread = {"pid": 7, "thread_id": 140, "thread_name": "main", "active": True, "owns_gil": True, "frames": []}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([thread], indent=2))
    with pytest.raises(NotATraceError, match=r"py-spy dump.*py-spy record"):
        look(path)


def test_damage_and_hostile_names(tmp_path: Path) -> None:
    path = tmp_path / "a.10hz.folded"
    path.write_bytes(b"a;\x1b[31m=1 3\nno count\n;;; 2\nb;c 999999999999999999\nb;\xff 1\nlast;line 12")
    frames = read_files([path])
    assert {"event_damaged", "file_cut", "text_not_utf8"} <= losses(frames)
    assert ("all threads", ((None, None, "\x1b[31m=1"), (None, None, "a"))) in stacks(frames)


def test_gzip_and_directories(tmp_path: Path) -> None:
    (tmp_path / "a.50hz.collapsed.txt.gz").write_bytes(gzip.compress(PYSPY.read_bytes()))
    (tmp_path / "notes.txt").write_text("a;b 3\n")
    assert [(one.name, one.format) for one in look(tmp_path)] == [("a.50hz.collapsed.txt.gz", "collapsed")]
