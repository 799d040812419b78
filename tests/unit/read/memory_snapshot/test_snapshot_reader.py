"""Snapshots of an allocator: tables against a simulated training, a real one, and files that mean harm."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.read import read_files
from stepscope.read.sniff import look
from tests.sizes import Size
from tests.unit.read.memory_snapshot.snapshot_build import FORWARD, LEAK, MB, PARAMETERS, START_US, trained, written


def test_totals_count_back_from_the_end(tmp_path: Path) -> None:
    frames = read_files([written(tmp_path / "snapshot.pickle")])
    events = frames["allocations"]
    # Parameters were there before the history; in the end these, gradient, state and six times the leak
    first = events.filter(pl.col("bytes") > 0).row(0, named=True)
    assert first["allocated"] == PARAMETERS + first["bytes"]
    held = PARAMETERS + 4 * MB + 8 * MB + 6 * LEAK
    # The last event asks for a batch of 1 MB to be given back, which is done 10 µs later
    assert (events["allocated"][-1], events["active"][-1]) == (held, held + MB)
    assert frames["live_memory"]["bytes"].sum() == held
    assert events["reserved"][-1] == frames["memory_segments"]["bytes"].sum()
    assert events["ts"].min() == START_US * 1000
    # Each release says when the streams were done with the block
    releases = events.filter(pl.col("bytes") < 0)
    assert (releases["unused"] - releases["ts"]).to_list() == [10_000] * len(releases)
    assert frames["losses"].is_empty()


def test_segments_and_stacks(tmp_path: Path) -> None:
    frames = read_files([written(tmp_path / "snapshot.pickle")])
    segments = frames["memory_segments"]
    assert segments["requested"].sum() == frames["allocations"]["allocated"][-1]
    assert (
        segments.filter(pl.col("blocks") == 0)["largest_free"].sum()
        == segments.filter(pl.col("blocks") == 0)["bytes"].sum()
    )
    stacks = dict(frames["stacks"].iter_rows())
    live = frames["live_memory"].filter(pl.col("count") == 6).row(0, named=True)
    assert [(one["function"], one["line"]) for one in stacks[live["stack"]]] == [("log", 44), ("main", 30)]


def test_a_snapshot_without_times_keeps_its_order(tmp_path: Path) -> None:
    frames = read_files([written(tmp_path / "snapshot.pickle", trained(times=False).snapshot())])
    assert frames["allocations"]["ts"].is_sorted()
    assert frames["losses"]["what"].cast(pl.String).to_list() == ["memory_times_unknown"]


def test_a_history_that_does_not_lead_to_the_snapshot_has_no_totals(tmp_path: Path) -> None:
    snapshot = trained().snapshot()
    snapshot["segments"] = []
    frames = read_files([written(tmp_path / "snapshot.pickle", snapshot)])
    assert frames["allocations"]["allocated"].null_count() == len(frames["allocations"])
    assert "memory_totals_unknown" in frames["losses"]["what"].cast(pl.String).to_list()


def test_what_the_allocator_refused_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = trained().snapshot()
    refused = {"action": "oom", "size": 12 << 30, "device_free": 1 << 30, "stream": 0, "frames": FORWARD}
    mark = {"action": "snapshot", "size": 0, "addr": 0, "stream": 0, "frames": [], "time_us": START_US + 80}
    snapshot["device_traces"][0] += [{**refused, "time_us": START_US + 70}, mark]
    path = written(tmp_path / "snapshot.pickle", snapshot)
    frames = read_files([path])
    events = frames["run_events"].select(pl.col("name").cast(pl.String), "ts", "dur").rows()
    assert events == [("out of memory", 1000 * (START_US + 70), 0)]
    assert frames["losses"].select(pl.col("what").cast(pl.String), "count").rows() == [("event_unknown_kind", 1)]
    assert "snapshot" in frames["losses"]["advice"][0]
    assert frames["allocations"].height == read_files([written(tmp_path / "other.pickle")])["allocations"].height
    assert main(["import", str(path), "--output", str(tmp_path / "runs")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cuda:0 ran out of memory: 12.0 GiB were asked for by net.py:7 forward." in said
    assert "cuda:0 did not have 12.0 GiB, 1.00 GiB were free (net.py:7 forward)" in said


def test_ranges_of_the_program_are_spans_and_steps(tmp_path: Path) -> None:
    def mark(name: str, stage: str, at: int) -> dict[str, Any]:
        return {"name": name, "stage": stage, "device": 0, "time_us": START_US + at}

    snapshot = trained().snapshot()
    snapshot["external_annotations"] = [
        mark("ProfilerStep#3", "START", 0), mark("## forward ##", "START", 10), mark("## forward ##", "END", 30),
        mark("ProfilerStep#3", "END", 100), mark("late", "START", 110),
    ]  # fmt: skip
    frames = read_files([written(tmp_path / "snapshot.pickle", snapshot)])
    spans = frames["spans"].select(pl.col("name", "kind").cast(pl.String), "ts", "dur").rows()
    assert spans == [
        ("ProfilerStep#3", "step", 1000 * START_US, 100_000),
        ("## forward ##", "annotation", 1000 * (START_US + 10), 20_000),
    ]
    assert frames["steps"]["number"].to_list() == [3]
    assert frames["losses"].select(pl.col("what").cast(pl.String)).to_series().to_list() == ["event_unmatched_begin"]


def test_a_real_snapshot(shared_data: Path) -> None:
    path = shared_data / "memory" / "snapshot_expandable.pkl"
    frames = read_files([path])
    # Given what the pickle itself says, read by the standard library: the file is trusted
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    alive = [block for block in blocks if block["state"] == "active_allocated"]
    assert frames["live_memory"]["count"].sum() == len(alive)
    assert frames["live_memory"]["bytes"].sum() == sum(block["requested_size"] for block in alive)
    assert frames["memory_segments"]["bytes"].to_list() == [one["total_size"] for one in snapshot["segments"]]
    assert frames["memory_segments"]["allocated"].to_list() == [one["allocated_size"] for one in snapshot["segments"]]
    # Then the totals that are counted back begin at what has no stack: it was there before the history
    before = sum(block["requested_size"] for block in alive if not block["frames"])
    events = frames["allocations"]
    assert events["allocated"].min() == before == 94_326_992
    assert events["allocated"][-1] == frames["live_memory"]["bytes"].sum()
    taken = [entry["size"] for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"]
    assert events.filter(pl.col("bytes") > 0)["bytes"].to_list() == taken


@pytest.mark.parametrize("name", ["snapshot.pickle", "snapshot.pkl", "dump.pickle.gz"])
def test_names_and_commands(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / name)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert [capture.format for capture in look(tmp_path)] == ["memory_snapshot"]
    output = tmp_path / "runs"
    assert main(["import", str(path), "-o", str(output)]) == 0
    run = stepscope.open(output)
    assert run.result("memory_peak").height  # type: ignore[union-attr]
    assert main(["report", str(path)]) == 0
    assert "Traceback" not in capsys.readouterr().err


class Hostile:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "\x1b[31m<b>=1\n"
    snapshot = trained().snapshot()
    for event in snapshot["device_traces"][0]:
        event["frames"] = [{**one, "name": hostile, "filename": hostile} for one in event["frames"]]
    stacks = read_files([written(tmp_path / "snapshot.pickle", snapshot)])["stacks"]["frames"].explode().struct.unnest()
    assert {hostile} <= set(stacks["function"]) & set(stacks["file"])


@pytest.mark.parametrize("where", ["segments", "device_traces", "block", "frame", "key"])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_malicious_snapshot_runs_nothing(where: str, protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    snapshot, hostile = trained().snapshot(), Hostile(target)
    if where == "block":
        snapshot["segments"][0]["blocks"].append(hostile)
    elif where == "frame":
        snapshot["device_traces"][0][0]["frames"] = [hostile]
    elif where == "key":
        snapshot["external_annotations"] = [hostile]
    else:
        snapshot[where] = hostile
    path = written(tmp_path / "snapshot.pickle", snapshot, protocol)
    with pytest.raises(NotATraceError, match="is refused"):
        read_files([path])
    assert not target.exists()


def test_another_pickle_is_refused_before_it_is_read(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    for number, value in enumerate(([1, 2], {"weights": Hostile(target)}, Hostile(target))):
        path = written(tmp_path / f"other{number}.pickle", value)
        with pytest.raises(NotATraceError, match="is a pickle, and not a snapshot"):
            look(path)
    assert not target.exists()


def test_other_pickles_in_a_directory_are_passed_over(tmp_path: Path) -> None:
    written(tmp_path / "snapshot.pickle")
    written(tmp_path / "data.pkl", {"weights": [1, 2]})
    assert [capture.root.name for capture in look(tmp_path)] == ["snapshot.pickle"]


def test_cut_at_every_length(tmp_path: Path, size: Size) -> None:
    content = written(tmp_path / "snapshot.pickle").read_bytes()
    path = tmp_path / "cut.pickle"
    for length in size.lengths(len(content), 3):
        path.write_bytes(content[:length])
        with pytest.raises(InputError) as raised:
            read_files([path])
        assert "cut.pickle" in str(raised.value)


#: What stands in place of a part of the snapshot.
ODD: dict[str, Any] = {
    "no segments": {"segments": None, "device_traces": []},
    "text": {"segments": "segments", "device_traces": []},
    "traces of text": {"segments": [], "device_traces": "x"},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_snapshot_is_one_line(odd: str, tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="not a snapshot"):
        read_files([written(tmp_path / "odd.pickle", ODD[odd])])


def test_damaged_entries_are_counted(tmp_path: Path) -> None:
    snapshot = trained().snapshot()
    snapshot["device_traces"][0] += [7, {"action": "alloc"}, {"action": 3, "size": 1}, {"action": "alloc", "size": -5}]
    snapshot["device_traces"].append("x")
    snapshot["segments"] += [None, {"device": "cuda"}, {"device": 0, "total_size": 1 << 80}]
    frames = read_files([written(tmp_path / "odd.pickle", snapshot)])
    losses = dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())
    assert losses["event_damaged"] == 7
    assert frames["allocations"].height


def test_lists_that_stand_for_each_other_end(tmp_path: Path) -> None:
    # Given 400 devices that share one history of 5,000 events: two million events of 60 kB
    trace = [{"action": "alloc", "addr": 1, "size": 1}] * 5_000
    path = written(tmp_path / "odd.pickle", {"segments": [], "device_traces": [trace] * 400})
    with pytest.raises(DamagedTraceError, match="repeats its lists"):
        read_files([path])
