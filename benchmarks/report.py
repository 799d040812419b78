"""Time of writing timelines: stepscope's two formats against the standard ways to write the same slices.

python benchmarks/report.py TRACE.json[.gz] [--slices 300000] [--repeats 3]

TRACE is a Kineto trace; its tables are repeated end to end up to this number of slices. Then, alternating:

* ``trace_view.json`` against ``json.dump`` of the same events as Python objects (making these from the tables is not
  counted);
* ``trace.pftrace`` against the ``perfetto`` package's ``TraceProtoBuilder`` with the same slices and arguments, and
  with slices only (stepscope: the tables without details).

Everything runs in this process and writes to a temporary directory; stepscope's figures contain the layout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read import read_files
from stepscope.report.protocol import Source
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.report.timeline.perfetto.writer import Pftrace
from stepscope.trace import tables
from stepscope.trace.tables import Frames, empty

#: Columns that refer to spans, and columns that are times, by table.
SPAN_COLUMNS = {
    "spans": ("id", "parent"),
    "kernels": ("span", "launch", "operator"),
    "operators": ("span",),
    "collectives": ("span",),
    "arguments": ("span",),
    "flows": ("from", "to"),
}
TIMED = ("spans", "steps", "counters", "allocations")
DETAILS = ("kernels", "operators", "collectives", "arguments")


def repeated(frames: Frames, slices: int) -> Frames:
    """Return the tables repeated end to end up to at least this number of spans."""
    spans = frames["spans"]
    times = -(-slices // len(spans))
    first, last = spans["ts"].min(), (spans["ts"] + spans["dur"]).max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    ids = int(spans["id"].max()) + 1  # type: ignore[arg-type]
    result = dict(frames)
    for name in {*SPAN_COLUMNS, *TIMED}:
        copies = []
        for copy in range(times):
            moved = [pl.col(column) + copy * ids for column in SPAN_COLUMNS.get(name, ())]
            moved += [pl.col("ts") + copy * (last - first)] if name in TIMED else []
            copies.append(frames[name].with_columns(moved))
        result[name] = pl.concat(copies)
    return result


def write_with_json(document: dict[str, Any], path: Path) -> None:
    """Write the events with the standard library."""
    with path.open("w") as file:
        json.dump(document, file)


def write_with_perfetto(events: list[dict[str, Any]], path: Path, *, arguments: bool) -> None:
    """Write the events with the perfetto package: interned texts, one begin and one end packet per slice."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    slices = [event for event in events if event["ph"] == "X"]
    names = {name: number for number, name in enumerate({event["name"] for event in slices}, 1)}
    tracks = {lane: number for number, lane in enumerate({(event["pid"], event["tid"]) for event in slices}, 1)}
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id, packet.sequence_flags = 1, 3
    for name, number in names.items():
        packet.interned_data.event_names.add(iid=number, name=name)
    for (pid, tid), number in tracks.items():
        descriptor = builder.add_packet().track_descriptor
        descriptor.uuid, descriptor.thread.pid, descriptor.thread.tid = number, pid, tid
    for event in slices:
        track, start = tracks[event["pid"], event["tid"]], round(event["ts"] * 1000)
        begin = builder.add_packet()
        begin.timestamp, begin.trusted_packet_sequence_id, begin.sequence_flags = start, 1, 2
        begin.track_event.type, begin.track_event.track_uuid = TrackEvent.TYPE_SLICE_BEGIN, track
        begin.track_event.name_iid = names[event["name"]]
        for key, value in event["args"].items() if arguments else ():
            annotation = begin.track_event.debug_annotations.add(name=key)
            if isinstance(value, int):
                annotation.int_value = value
            elif isinstance(value, float):
                annotation.double_value = value
            else:
                annotation.string_value = str(value)
        end = builder.add_packet()
        end.timestamp, end.trusted_packet_sequence_id = start + round(event["dur"] * 1000), 1
        end.track_event.type, end.track_event.track_uuid = TrackEvent.TYPE_SLICE_END, track
    path.write_bytes(builder.serialize())


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--slices", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    frames = repeated(read_files([options.trace]), options.slices)
    bare = {name: empty(name) if name in DETAILS else frame for name, frame in frames.items()}
    source, bare_source = (Source(tables.lazy(each), {}, {}) for each in (frames, bare))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        document = json.loads(TraceView().write(source, here)[0].read_text())
        events = document["traceEvents"]
        ways: dict[str, tuple[Callable[[], object], str]] = {
            "trace_view.json, stepscope": (lambda: TraceView().write(source, here), "trace_view.json"),
            "trace_view.json, json.dump": (lambda: write_with_json(document, here / "peer.json"), "peer.json"),
            "trace.pftrace, stepscope": (lambda: Pftrace().write(source, here), "trace.pftrace"),
            "trace.pftrace, perfetto": (
                lambda: write_with_perfetto(events, here / "peer.pftrace", arguments=True),
                "peer.pftrace",
            ),
            "slices only, stepscope": (lambda: Pftrace().write(bare_source, here / "bare"), "bare/trace.pftrace"),
            "slices only, perfetto": (
                lambda: write_with_perfetto(events, here / "bare.pftrace", arguments=False),
                "bare.pftrace",
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.repeats):
            for name, (way, _) in ways.items():
                begin = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - begin)
        count = len(frames["spans"])
        print(
            f"{count:,} slices of {options.trace.name}, {len(frames['flows']):,} arrows; median of {options.repeats}\n"
        )
        for name, (_, file) in ways.items():
            median, size = statistics.median(seconds[name]), (here / file).stat().st_size
            print(f"{name:28} {median:7.2f} s {count / median:10,.0f} slices/s {size / count:7.1f} bytes/slice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
