"""Perfetto's own format: slices, counters and flows, against Perfetto's trace processor; our own export read back."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.errors import DamagedTraceError, StepscopeError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.report.protocol import Source
from stepscope.report.timeline.perfetto.writer import Pftrace
from stepscope.trace.tables import Frames, lazy
from tests.golden import hostile
from tests.golden.trace_processor import ask
from tests.unit import perfetto_build
from tests.unit.perfetto_build import BEGIN, BOOT, END, MAIN, MAIN_TRACK, PROCESS, REAL, WORKER, Trace

DATA = Path(__file__).resolve().parents[3] / "data"
#: From the trace processor's time, that of the boot clock, to ours.
SHIFT = REAL - BOOT
SLICES = """select ts, dur, slice.name, coalesce(thread.name, track.name) from slice join track on track_id = track.id
    left join thread_track on track_id = thread_track.id left join thread using (utid)"""
COUNTERS = "select ts, value, name from counter join counter_track on track_id = counter_track.id"
FLOWS = "select a.ts, a.name, b.ts, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return perfetto_build.write(tmp_path / "trace.pftrace")


def slices(frames: Frames) -> Counter[tuple[int, int, str, str]]:
    tracks = frames["tracks"].select(track="id", lane="name")
    rows = frames["spans"].join(tracks, on="track").select("ts", "dur", pl.col("name").cast(pl.String), "lane")
    return Counter(rows.rows())


def losses(frames: Frames) -> dict[str, int]:
    return dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").rows())


def test_slices_counters_and_flows_are_those_of_the_trace_processor(file: Path) -> None:
    found, counted, drawn = ask(file, [SLICES, COUNTERS, FLOWS])
    frames = read_files([file])
    assert slices(frames) == Counter((ts + SHIFT, dur, name, lane) for ts, dur, name, lane in found)
    assert len(found) == 3 * 4 + 3
    samples = frames["counters"].select("ts", "value", pl.col("name").cast(pl.String)).rows()
    assert Counter(samples) == Counter((ts + SHIFT, value, name) for ts, value, name in counted)
    ends = frames["spans"].select("id", "ts", pl.col("name").cast(pl.String))
    arrows = frames["flows"].join(ends, left_on="from", right_on="id").join(ends, left_on="to", right_on="id")
    assert Counter(arrows.select("ts", "name", "ts_right", "name_right").rows()) == Counter(
        (begin + SHIFT, one, end + SHIFT, other) for begin, one, end, other in drawn
    )
    assert len(drawn) == 4
    assert losses(frames) == {}


def test_threads_steps_units_and_annotations(file: Path) -> None:
    run = stepscope.open(file)
    tracks = run.tables["tracks"].collect().select(pl.col("kind").cast(pl.String), "name", "process", "thread").rows()
    assert {("thread", "main", PROCESS, MAIN), ("thread", "loader", PROCESS, WORKER)} <= set(tracks)
    assert ("other", "requests", PROCESS, None) in tracks
    assert run.tables["steps"].collect()["number"].to_list() == [0, 1, 2, 3]
    units = run.tables["counters"].collect().select(pl.col("name").cast(pl.String), pl.col("unit").cast(pl.String))
    assert set(units.rows()) == {("held", "bytes"), ("loss", "")}
    arguments = run.tables["arguments"].collect().select(pl.col("key").cast(pl.String), "value").rows()
    assert Counter(arguments) == Counter([("size", '"large"')] * 4 + [("batch", str(-step)) for step in range(4)])


@pytest.mark.parametrize("form", ["compressed", "gzip", "another name"])
def test_the_same_in_other_forms(form: str, file: Path, tmp_path: Path) -> None:
    path = tmp_path / {"gzip": "a.pftrace.gz", "compressed": "a.perfetto-trace"}.get(form, "a.bin")
    content = perfetto_build.compressed(perfetto_build.trained()) if form == "compressed" else file.read_bytes()
    path.write_bytes(gzip.compress(content) if form == "gzip" else content)
    assert look(path)[0].format == "perfetto"
    frames, whole = read_files([path]), read_files([file])
    assert slices(frames) == slices(whole)
    assert frames["counters"].equals(whole["counters"])


def test_words_and_times_begin_anew_when_the_state_is_cleared(tmp_path: Path) -> None:
    trace = perfetto_build.trained(1)
    trace.clocks()
    trace.words({1: "another forward"}, {})
    trace.event(BEGIN, 10, name_iid=1)
    trace.event(END, 10)
    trace.clocks(sequence=2)
    trace.words({1: "of another writer"}, {}, sequence=2)
    trace.event(BEGIN, 30, sequence=2, name_iid=1, track_uuid=perfetto_build.WORKER_TRACK)
    trace.event(END, 5, sequence=2, track_uuid=perfetto_build.WORKER_TRACK)
    path = trace.write(tmp_path / "a.pftrace")
    (found,) = ask(path, [SLICES])
    ours = slices(read_files([path]))
    assert ours == Counter((ts + SHIFT, dur, name, lane) for ts, dur, name, lane in found)
    assert {(REAL + 10, 10, "another forward", "main"), (REAL + 30, 5, "of another writer", "loader")} <= set(ours)


def test_counters_of_other_events_and_counters_that_count_on(tmp_path: Path) -> None:
    trace = Trace()
    trace.clocks()
    trace.tracks()
    described = trace.packet().track_descriptor
    described.uuid, described.name, described.parent_uuid = 99, "sum", perfetto_build.PROCESS_TRACK
    described.counter.is_incremental = True
    for value in (5, 7, -2):
        more = {"extra_counter_track_uuids": [perfetto_build.SIZE_TRACK], "extra_counter_values": [value]}
        more |= {
            "extra_double_counter_track_uuids": [perfetto_build.COUNTER_TRACK],
            "extra_double_counter_values": [0.5],
        }
        trace.event(BEGIN, 10, name="a", **more)
        trace.event(perfetto_build.COUNTER, 10, track_uuid=99, counter_value=value)
        trace.event(END, 10)
    path = trace.write(tmp_path / "a.pftrace")
    (counted,) = ask(path, [COUNTERS])
    samples = read_files([path])["counters"].select("ts", "value", pl.col("name").cast(pl.String)).rows()
    assert Counter(samples) == Counter((ts + SHIFT, value, name) for ts, value, name in counted)
    assert [value for _, value, name in sorted(samples) if name == "sum"] == [5.0, 12.0, 10.0]


def test_events_of_chromes_older_form(tmp_path: Path) -> None:
    trace = Trace()
    trace.clocks()
    trace.tracks()
    for phase, at in (("B", 10), ("X", 20), ("E", 100)):
        event = trace.event(0, at, name=phase, track_uuid=MAIN_TRACK)
        event.legacy_event.phase = ord(phase)
        if phase == "X":
            event.legacy_event.duration_us = 3
    frames = read_files([trace.write(tmp_path / "a.pftrace")])
    assert set(slices(frames)) == {(REAL + 10, 120, "B", "main"), (REAL + 30, 3_000, "X", "main")}


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    trace = perfetto_build.trained(1)
    trace.packet().ftrace_events.cpu = 1
    trace.packet().perf_sample.cpu = 1
    trace.event(perfetto_build.INSTANT, 5, name="mark")
    frames = read_files([trace.write(tmp_path / "a.pftrace")])
    advice = " ".join(frames["losses"]["advice"].to_list())
    assert losses(frames) == {"event_unknown_kind": 1}
    assert all(word in advice for word in ("of the kernel (ftrace)", "of perf", "Marks of Perfetto"))


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        (lambda trace: trace.event(BEGIN, 5, name="open"), "event_unmatched_begin"),
        (lambda trace: trace.event(END, 5), "event_unmatched_end"),
        (lambda trace: trace.packet(previous_packet_dropped=1), "events_dropped"),
        (lambda trace: trace.event(BEGIN, 1 << 63, name="late", clock=6), "event_bad_time"),
        (lambda trace: trace.event(BEGIN, 5, name_iid=77), "value_unreadable"),
        (lambda trace: trace.event(perfetto_build.COUNTER, 5, track_uuid=13), "event_damaged"),
    ],
)
def test_damage_is_counted(change: object, loss: str, tmp_path: Path) -> None:
    trace = perfetto_build.trained(1)
    change(trace)  # type: ignore[operator]
    assert losses(read_files([trace.write(tmp_path / "a.pftrace")]))[loss] == 1


def test_the_first_packet_of_a_sequence_says_nothing_of_lost_ones(tmp_path: Path) -> None:
    trace = perfetto_build.trained(1)
    trace.packet(99, previous_packet_dropped=1)
    assert losses(read_files([trace.write(tmp_path / "a.pftrace")])) == {}


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    trace = Trace()
    import zlib

    trace.packet().compressed_packets = zlib.compress(bytes(300 << 20), 9)
    with pytest.raises(DamagedTraceError, match="expands to more than"):
        read_files([trace.write(tmp_path / "a.pftrace")])


def test_a_cycle_of_tracks_ends(tmp_path: Path) -> None:
    trace = perfetto_build.trained(1)
    for uuid, parent in ((201, 202), (202, 201)):
        described = trace.packet().track_descriptor
        described.uuid, described.parent_uuid = uuid, parent
    trace.event(BEGIN, 5, name="a", track_uuid=201)
    trace.event(END, 5, track_uuid=201)
    assert "a" in read_files([trace.write(tmp_path / "a.pftrace")])["spans"]["name"].to_list()


# Our own export, read back


def exported(frames: Frames, directory: Path) -> Frames:
    [path] = Pftrace().write(Source(lazy(frames), {}, {}), directory)
    return read_files([path])


def placed(frames: Frames, *columns: str) -> Counter[tuple[object, ...]]:
    """Return the rows of spans with all that is known of their tracks."""
    of_track = ("kind", "device", "process", "thread", "stream", "name")
    tracks = frames["tracks"].select("id", *(pl.col(name).cast(pl.String).alias(f"of_{name}") for name in of_track))
    rows = frames["spans"].join(tracks, left_on="track", right_on="id")
    texts = [pl.col(name).cast(pl.String) for name in ("name", "kind", "phase")]
    numbers = ("ts", "dur", "depth", "step", "correlation", "sequence")
    return Counter(rows.select(*numbers, *texts, *(f"of_{name}" for name in of_track), *columns).rows())


def detail(frames: Frames, table: str, *left_out: str) -> Counter[str]:
    """Return the rows of a table of details as text, each with the time and name of its span."""
    spans = frames["spans"].select(span="id", at="ts", named=pl.col("name").cast(pl.String))
    columns = [name for name in frames[table].columns if name not in left_out]
    rows = frames[table].select(columns).join(spans, on="span").drop("span")
    return Counter(str([str(value) for value in row]) for row in rows.rows())


@pytest.mark.parametrize("name", ["alexnet_simple_add", "cuda_event_sync"])
def test_our_own_export_is_read_back(name: str, tmp_path: Path) -> None:
    frames = read_files([DATA / "kineto" / f"{name}.json.gz"])
    again = exported(frames, tmp_path)
    assert placed(again) == placed(frames)
    for table in ("kernels", "operators", "collectives", "arguments"):
        # The scope of an operator is not in a timeline.
        assert detail(again, table, "scope") == detail(frames, table, "scope"), table
    assert again["flows"].sort("from", "to").equals(frames["flows"].sort("from", "to"))
    assert again["steps"].select("number", "ts", "dur").equals(frames["steps"].select("number", "ts", "dur"))


@pytest.mark.parametrize("name", ["ascend/db_level0/rank1_ascend_pt", "xplane/jax_mi300_conv.xplane.pb"])
def test_streams_of_other_devices_are_streams_again(name: str, shared_data: Path, tmp_path: Path) -> None:
    frames = read_files([shared_data / name])
    again = exported(frames, tmp_path)

    def streams(of: Frames) -> Counter[tuple[object, ...]]:
        chosen = (
            of["tracks"].filter(pl.col("kind") == "stream").select("id", pl.col("device").cast(pl.String), "stream")
        )
        spans = of["spans"].select("track", "ts", "dur", pl.col("kind").cast(pl.String))
        return Counter(spans.join(chosen, left_on="track", right_on="id").drop("track").rows())

    assert streams(again) == streams(frames)


def test_steps_and_counters_of_our_own_export_are_read_back(tmp_path: Path) -> None:
    frames = read_files([DATA / "xplane" / "steps.xplane.pb", perfetto_build.write(tmp_path / "a.pftrace")])
    again = exported(frames, tmp_path)
    assert again["steps"].select("number", "ts", "dur").equals(frames["steps"].select("number", "ts", "dur"))
    assert again["spans"].height == frames["spans"].height
    columns = ("ts", "value", pl.col("name").cast(pl.String), pl.col("unit").cast(pl.String))
    assert Counter(again["counters"].select(columns).rows()) == Counter(frames["counters"].select(columns).rows())


def test_hostile_names_of_our_own_export_are_read_back(tmp_path: Path) -> None:
    given = hostile.frames()
    again = exported(given, tmp_path)
    told = {name if len(name) < 4096 else name[:1000] for name in hostile.NAMES}
    names = {name if len(name) < 4096 else name[:1000] for name in again["spans"]["name"].cast(pl.String).to_list()}
    assert told <= names


def test_hostile_bytes_are_one_line(tmp_path: Path) -> None:
    for content in (b"", b"\x0a", b"\x0a\x02\x50\x01", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 50):
        path = tmp_path / "a.pftrace"
        path.write_bytes(content)
        try:
            read_files([path])
        except StepscopeError as error:
            assert "\n" not in str(error)
