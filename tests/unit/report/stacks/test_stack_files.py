"""Stacks for other viewers: each file, read by another reader, has the times of the tables."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from jsonschema import Draft7Validator

import stepscope
from stepscope.read import read_files
from stepscope.report.protocol import Source
from stepscope.report.registry import FORMATS
from stepscope.trace import tables
from stepscope.trace.tables import Tables
from tests import pprof_schema

from ....golden import hostile
from .firefox_profiler import times_of_threads

DATA = Path(__file__).parents[3] / "data"
#: Samples of Python stacks; host operators with kernels on two streams; steps with phases.
SAMPLED, KERNELS, STEPS = (
    DATA / "speedscope" / "pyspy.speedscope.json",
    DATA / "kineto" / "alexnet_simple_add.json.gz",
    DATA / "xplane" / "steps.xplane.pb",
)
#: Refuses what does not follow the schema that speedscope publishes.
SPEEDSCOPE = Draft7Validator(json.loads((DATA / "speedscope" / "file-format-schema.json").read_text()))
CAPTURES = pytest.mark.parametrize("capture", [SAMPLED, KERNELS, STEPS], ids=lambda path: path.name.split(".")[0])


@cache
def opened(capture: Path) -> Tables:
    return stepscope.open(capture).tables


def written(name: str, given: Tables, directory: Path) -> Path:
    (path,) = FORMATS[name].write(Source(given, {}, {}), directory)
    return path


def outermost(given: Tables) -> Counter[str]:
    """The time of each thread and stream, ns: that of its samples, or of its spans that nothing contains, united."""
    found: Counter[str] = Counter()
    samples = given["samples"].select(pl.col("name").cast(str), "dur").collect()
    for name, dur in samples.rows():
        found[name] += dur
    tracks = given["tracks"].select("id", pl.col("kind").cast(str), pl.col("device").cast(str), "name").collect()
    for track, kind, device, name in tracks.rows():
        if kind not in (("stream",) if samples.height else ("thread", "stream")):
            continue
        spans = given["spans"].filter((pl.col("track") == track) & (pl.col("kind").cast(str) != "step"))
        end = 0
        for ts, dur in spans.select("ts", "dur").sort("ts").collect().rows():
            found[name if kind == "thread" else f"{device} {name}"] += max(0, ts + dur - max(ts, end))
            end = max(end, ts + dur)
    return +found


@CAPTURES
def test_speedscope(capture: Path, tmp_path: Path) -> None:
    path = written("speedscope", opened(capture), tmp_path)
    document = json.loads(path.read_text())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    SPEEDSCOPE.validate(document)
    found: Counter[str] = Counter()
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            assert all(0 <= frame < len(document["shared"]["frames"]) for frame in stack)
            found[profile["name"]] += weight if stack else 0
    assert +found == outermost(opened(capture))
    # and it is a capture that stepscope reads, with the same times
    again = read_files([path])["samples"].filter(pl.col("stack").is_not_null())
    assert again["dur"].sum() == sum(found.values())


def test_speedscopes_schema_refuses_what_speedscope_would(tmp_path: Path) -> None:
    document = json.loads(written("speedscope", opened(SAMPLED), tmp_path).read_text())
    document["profiles"][0]["unit"] = "ns"
    assert not SPEEDSCOPE.is_valid(document)


@CAPTURES
def test_pprof(capture: Path, tmp_path: Path) -> None:
    path = written("pprof", opened(capture), tmp_path)
    profile = pprof_schema.profile().FromString(gzip.decompress(path.read_bytes()))
    texts = list(profile.string_table)
    assert texts[0] == ""
    assert [(texts[kind.type], texts[kind.unit]) for kind in profile.sample_type] == [
        ("samples", "count"),
        ("time", "nanoseconds"),
    ]
    places = {place.id for place in profile.location}
    assert {line.function_id for place in profile.location for line in place.line} <= {
        one.id for one in profile.function
    }
    found: Counter[str] = Counter()
    for sample in profile.sample:
        assert set(sample.location_id) <= places
        (thread,) = (texts[label.str] for label in sample.label if texts[label.key] == "thread")
        found[thread] += sample.value[1]
    assert +found == outermost(opened(capture))
    (again,) = (read_files([path])["samples"],)
    assert again["dur"].sum() == sum(found.values())


def test_pprof_labels_name_step_phase_and_module(tmp_path: Path) -> None:
    spans = {
        "track": [0, 0, 1], "ts": [10, 12, 20], "dur": [10, 3, 5], "name": ["linear", "mm", "kernel"],
        "kind": ["operator", "operator", "kernel"], "id": [0, 1, 2], "parent": [None, 0, None], "depth": [0, 1, 0],
        "step": [4, 4, 4], "phase": ["forward", "forward", None],
    }  # fmt: skip
    made = tables.complete(
        {
            "spans": pl.DataFrame(spans),
            "operators": pl.DataFrame({"span": [0], "module": ["Net/fc"]}),
            "tracks": pl.DataFrame(
                {
                    "id": [0, 1], "kind": ["thread", "stream"], "rank": 0, "host": "", "device": ["cpu", "cuda:0"],
                    "name": ["main", "stream 7"], "order": [0, 1],
                }
            ),
        }
    )  # fmt: skip
    path = written("pprof", tables.lazy(made), tmp_path)
    profile = pprof_schema.profile().FromString(gzip.decompress(path.read_bytes()))
    texts = list(profile.string_table)
    functions = {one.id: texts[one.name] for one in profile.function}
    found = {}
    for sample in profile.sample:
        labels = {texts[label.key]: texts[label.str] if label.str else label.num for label in sample.label}
        found[tuple(functions[place] for place in sample.location_id)] = (sample.value[1], labels)
    host = {"thread": "main", "step": 4, "phase": "forward", "module": "Net/fc"}
    assert found == {
        ("linear",): (7, host),
        ("mm", "linear"): (3, host),
        ("kernel",): (5, {"thread": "cuda:0 stream 7", "step": 4}),
    }


@CAPTURES
def test_collapsed(capture: Path, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for line in written("collapsed", opened(capture), tmp_path).read_text().splitlines():
        stack, _, time = line.rpartition(" ")
        found[stack.split(";")[0]] += int(time)
    wanted = outermost(opened(capture))
    lines = sum(1 for _ in wanted)
    assert set(+found) <= set(wanted)
    assert lines
    for name, time in wanted.items():
        assert found[name] == pytest.approx(time / 1000, rel=0.02, abs=50)  # each line is rounded to a µs


@CAPTURES
def test_firefox(capture: Path, tmp_path: Path) -> None:
    document = json.loads(written("firefox", opened(capture), tmp_path).read_text())
    assert document["meta"]["preprocessedProfileVersion"] == 48
    assert document["meta"]["categories"][0]["color"] == "grey"
    found: Counter[str] = Counter()
    for thread in document["threads"]:
        check_tables(thread)
        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
            found[thread["name"]] += round(weight * 1e6)
            assert stack is None or 0 <= stack < thread["stackTable"]["length"]
        assert thread["samples"]["time"] == sorted(thread["samples"]["time"])
    assert +found == outermost(opened(capture))


@pytest.mark.slow
def test_firefox_profiler_opens_its_file(tmp_path: Path) -> None:
    wanted = outermost(opened(KERNELS))
    found = times_of_threads(written("firefox", opened(KERNELS), tmp_path), tmp_path)
    assert {name: round(ms * 1e6) for name, ms in found.items()} == pytest.approx(dict(wanted), abs=1000)


def check_tables(thread: dict[str, Any]) -> None:
    """What the format promises: columns of one length, numbers of rows that are there, callers before the called."""
    assert isinstance(thread["pid"], str)
    for name in ("samples", "markers", "stackTable", "frameTable", "funcTable", "resourceTable", "nativeSymbols"):
        lengths = {len(column) for column in thread[name].values() if isinstance(column, list)}
        assert lengths == {thread[name]["length"]}, name
    stacks, frames, functions = thread["stackTable"], thread["frameTable"], thread["funcTable"]
    assert all(caller is None or caller < place for place, caller in enumerate(stacks["prefix"]))
    assert all(0 <= frame < frames["length"] for frame in stacks["frame"])
    assert all(0 <= function < functions["length"] for function in frames["func"])
    texts = [*functions["name"], *(file for file in functions["fileName"] if file is not None)]
    assert all(0 <= text < len(thread["stringArray"]) for text in texts)


@pytest.mark.parametrize("name", ["speedscope", "pprof", "firefox", "collapsed"])
def test_hostile_names_stay_text(name: str, tmp_path: Path) -> None:
    content = written(name, hostile.source().tables, tmp_path).read_bytes()
    if name == "pprof":
        pprof_schema.profile().FromString(gzip.decompress(content))
    else:
        assert b"\x1b" not in content
        assert name == "collapsed" or json.loads(content)
        for line in content.decode().splitlines() if name == "collapsed" else ():
            assert line.rpartition(" ")[2].isdecimal()
