"""Profiles of speedscope's format: what py-spy recorded, and both kinds of profiles, as samples of stacks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.read import read_files
from stepscope.read.sniff import look

PYSPY = Path(__file__).parents[3] / "data" / "speedscope" / "pyspy.speedscope.json"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def test_py_spys_file_gives_its_own_times() -> None:
    document = json.loads(PYSPY.read_text())
    frames, (profile,) = document["shared"]["frames"], document["profiles"]
    time: Counter[tuple[str, int]] = Counter()
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        innermost = frames[stack[-1]]
        time[innermost["name"], innermost["line"]] += round(weight * 1e9)
    run = stepscope.open(PYSPY)
    samples = run.tables["samples"].collect()
    assert samples.height == len(profile["samples"])
    assert samples["dur"].sum() == sum(time.values())
    assert samples["state"].null_count() == samples.height  # py-spy does not say it
    stacks = run.tables["stacks"].collect()
    own = samples.join(stacks, left_on="stack", right_on="id").with_columns(pl.col("frames").list.first())
    found = own.unnest("frames").group_by("function", "line").agg(pl.col("dur").sum())
    assert {(name, line): dur for name, line, dur in found.rows()} == time
    # and the results of stacks hold it
    lines = run.result("python_lines")
    assert isinstance(lines, pl.DataFrame)
    assert lines["Samples"].sum() == samples.height
    assert lines.filter(pl.col("Samples") > 0)["Python(us)"].null_count() > 0
    flame = run.result("flame")
    assert isinstance(flame, pl.DataFrame)
    assert flame["Self(us)"].sum() == pytest.approx(samples["dur"].sum() / 1e3)


def write(path: Path, *profiles: dict[str, Any], frames: int = 3) -> Path:
    shared = {"frames": [{"name": f"f{number}", "file": "a.py", "line": number + 1} for number in range(frames)]}
    path.write_text(json.dumps({"$schema": SCHEMA, "shared": shared, "profiles": list(profiles)}))
    return path


def sampled(samples: list[list[int]], weights: list[float], **more: Any) -> dict[str, Any]:
    profile = {"type": "sampled", "name": "main", "unit": "milliseconds", "startValue": 5, "endValue": 9}
    return {**profile, "samples": samples, "weights": weights, **more}


def stacks_of(path: Path) -> list[tuple[int, int, list[str]]]:
    frames = read_files([path])
    named = {
        row["id"]: [frame["function"] for frame in row["frames"]] for row in frames["stacks"].iter_rows(named=True)
    }
    return [(ts, dur, named.get(stack, [])) for ts, dur, stack in frames["samples"].select("ts", "dur", "stack").rows()]


def test_samples_follow_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", sampled([[0, 1], [0], []], [1, 2, 0.5]))
    assert stacks_of(path) == [
        (5_000_000, 1_000_000, ["f1", "f0"]),
        (6_000_000, 2_000_000, ["f0"]),
        (8_000_000, 500_000, []),
    ]


def test_events_become_what_is_open_between_them(tmp_path: Path) -> None:
    events = [("O", 0, 0), ("O", 2, 1), ("C", 5, 1), ("C", 9, 0)]
    listed = [{"type": sort, "at": at, "frame": frame} for sort, at, frame in events]
    path = write(
        tmp_path / "a.json",
        {"type": "evented", "name": "t", "unit": "nanoseconds", "startValue": 0, "endValue": 9, "events": listed},
    )
    assert stacks_of(path) == [(0, 2, ["f0"]), (2, 3, ["f1", "f0"]), (5, 4, ["f0"])]


def test_threads_are_told_apart(tmp_path: Path) -> None:
    names = ('Process 12 Thread 34 "loader"', 'Process 12 Thread 12 "MainThread"', "some thread", "another")
    path = write(tmp_path / "a.json", *(sampled([[0]], [1], name=name) for name in names))
    rows = read_files([path])["samples"].select("process", "thread", pl.col("name").cast(str)).rows()
    assert (12, 34, "loader") in rows
    assert (12, 12, "MainThread") in rows
    assert len({thread for _, thread, _ in rows}) == 4


def test_profiles_of_something_else_than_time(tmp_path: Path) -> None:
    of_bytes = sampled([[0]], [100], unit="bytes")
    with pytest.raises(NotATraceError, match="its unit is bytes"):
        read_files([write(tmp_path / "a.json", of_bytes)])
    frames = read_files([write(tmp_path / "b.json", of_bytes, sampled([[0]], [1]))])
    assert frames["samples"].height == 1
    assert "event_unknown_kind" in frames["losses"]["what"].cast(str).to_list()


@pytest.mark.parametrize(
    ("profile", "loss"),
    [
        (sampled([[0, 77]], [1]), "value_unreadable"),
        (sampled([[0], [1]], [1]), "event_without_duration"),
        (sampled([[0]], [1e300]), "event_bad_time"),
        (sampled([[0]], [-1]), "event_negative_duration"),
        ({"type": "evented", "unit": "seconds", "events": [{"type": "C", "at": 1, "frame": 0}]}, "event_unmatched_end"),
        (
            {"type": "evented", "unit": "seconds", "events": [{"type": "O", "at": 1, "frame": 0}]},
            "event_unmatched_begin",
        ),
    ],
)
def test_damage_is_counted(tmp_path: Path, profile: dict[str, Any], loss: str) -> None:
    assert loss in read_files([write(tmp_path / "a.json", profile)])["losses"]["what"].cast(str).to_list()


def test_a_line_beyond_every_number_costs_that_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", sampled([[0]], [1]))
    document = json.loads(path.read_bytes())
    document["shared"]["frames"][0] |= {"file": "a.py", "line": 1 << 63}
    path.write_text(json.dumps(document))
    tables = read_files([path])
    assert tables["stacks"]["frames"][0][0]["line"] is None
    assert "value_unreadable" in tables["losses"]["what"].cast(str).to_list()


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.speedscope.json"
    path.write_bytes(PYSPY.read_bytes()[:-50])
    assert look(path)[0].format == "speedscope"
    with pytest.raises(DamagedTraceError, match="is cut or damaged"):
        read_files([path])


def test_names_stay_text(tmp_path: Path) -> None:
    document = {
        "$schema": SCHEMA,
        "shared": {"frames": [{"name": "\x1b[31m=1\n", "file": "<b>"}]},
        "profiles": [sampled([[0]], [1])],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    assert stacks_of(path)[0][2] == ["\x1b[31m=1\n"]
