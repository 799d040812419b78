"""Traces as Perfetto's SDK writes them, made with Perfetto's own messages."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

PROCESS, MAIN, WORKER = 4321, 4321, 4330
BOOT, REAL = 5_000_000_000, 1_790_000_000_000_000_000
#: Clock 64: counts on from packet to packet, in ns; 65: absolute, in µs. Both are those of one sequence.
COUNTING, MICROSECONDS, MONOTONIC = 64, 65, 3
MAIN_TRACK, WORKER_TRACK, COUNTER_TRACK, LANE_TRACK, PROCESS_TRACK, SIZE_TRACK = 11, 12, 13, 14, 15, 16
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


class Trace:
    """Adds packets to a trace."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.protos: Any = perfetto_trace_pb2
        self.message = self.protos.Trace()

    def packet(self, sequence: int = 1, **fields: Any) -> Any:
        packet = self.message.packet.add(trusted_packet_sequence_id=sequence, **fields)
        return packet

    def clocks(self, sequence: int = 1, *, cleared: bool = True) -> None:
        packet = self.packet(sequence, sequence_flags=1 if cleared else 0)
        for number, at, more in (
            (1, REAL, {}),
            (6, BOOT, {}),
            (MONOTONIC, BOOT - 1_000_000, {}),
            (COUNTING, BOOT, {"is_incremental": True}),
            (MICROSECONDS, BOOT // 1000, {"unit_multiplier_ns": 1000}),
        ):
            packet.clock_snapshot.clocks.add(clock_id=number, timestamp=at, **more)
        packet.trace_packet_defaults.timestamp_clock_id = COUNTING
        packet.trace_packet_defaults.track_event_defaults.track_uuid = MAIN_TRACK

    def tracks(self) -> None:
        process = self.packet().track_descriptor
        process.uuid = PROCESS_TRACK
        process.process.pid, process.process.process_name = PROCESS, "trainer"
        for uuid, thread, name in ((MAIN_TRACK, MAIN, "main"), (WORKER_TRACK, WORKER, "loader")):
            described = self.packet().track_descriptor
            described.uuid, described.parent_uuid = uuid, PROCESS_TRACK
            described.thread.pid, described.thread.tid, described.thread.thread_name = PROCESS, thread, name
        for uuid, name in ((COUNTER_TRACK, "loss"), (SIZE_TRACK, "held")):
            described = self.packet().track_descriptor
            described.uuid, described.parent_uuid, described.name = uuid, PROCESS_TRACK, name
            described.counter.unit = 3 if uuid == SIZE_TRACK else 0
            described.counter.unit_multiplier = 1024 if uuid == SIZE_TRACK else 1
        lane = self.packet().track_descriptor
        lane.uuid, lane.parent_uuid, lane.name = LANE_TRACK, PROCESS_TRACK, "requests"

    def words(self, names: dict[int, str], categories: dict[int, str], sequence: int = 1) -> None:
        interned = self.packet(sequence, sequence_flags=2).interned_data
        for number, name in names.items():
            interned.event_names.add(iid=number, name=name)
        for number, name in categories.items():
            interned.event_categories.add(iid=number, name=name)
        interned.debug_annotation_names.add(iid=1, name="size")
        interned.debug_annotation_string_values.add(iid=1, str=b"large")

    def event(self, kind: int, at: int, sequence: int = 1, **fields: Any) -> Any:
        packet = self.packet(sequence, timestamp=at, sequence_flags=2)
        clock = fields.pop("clock", None)
        if clock is not None:
            packet.timestamp_clock_id = clock
        if kind:
            packet.track_event.type = kind
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(packet.track_event, name).extend(value)
            else:
                setattr(packet.track_event, name, value)
        return packet.track_event

    def write(self, path: Path) -> Path:
        path.write_bytes(self.message.SerializeToString())
        return path


def trained(steps: int = 4) -> Trace:
    """A training whose times count on from packet to packet: steps of 1,000 ns, each with a forward and a counter."""
    trace = Trace()
    trace.clocks()
    trace.tracks()
    trace.words({1: "forward", 2: "backward"}, {1: "train"})
    for step in range(steps):
        trace.event(BEGIN, 100, name=f"step_{step}", category_iids=[1])
        forward = trace.event(BEGIN, 100, name_iid=1, category_iids=[1], flow_ids=[step + 1])
        forward.debug_annotations.add(name_iid=1, string_value_iid=1)
        forward.debug_annotations.add(name="batch", int_value=-step)
        trace.event(END, 300)
        trace.event(BEGIN, 100, name_iid=2, categories=["train"], terminating_flow_ids=[step + 1])
        trace.event(COUNTER, 50, track_uuid=COUNTER_TRACK, double_counter_value=1 / (step + 1))
        trace.event(COUNTER, 0, track_uuid=SIZE_TRACK, counter_value=step)
        trace.event(END, 250)
        trace.event(END, 100)
    at = (BOOT + 1_000_000) // 1000
    trace.event(BEGIN, at, clock=MICROSECONDS, track_uuid=WORKER_TRACK, name="load")
    trace.event(END, at + 7, clock=MICROSECONDS, track_uuid=WORKER_TRACK)
    trace.event(BEGIN, BOOT + 2_000_000, clock=6, track_uuid=LANE_TRACK, name="request")
    trace.event(END, BOOT + 2_003_000, clock=6, track_uuid=LANE_TRACK)
    trace.event(BEGIN, BOOT + 2_000_000, clock=MONOTONIC, track_uuid=LANE_TRACK, name="later request")
    trace.event(END, BOOT + 2_000_100, clock=MONOTONIC, track_uuid=LANE_TRACK)
    return trace


def compressed(trace: Trace) -> bytes:
    """Return a trace whose packets but the first lie in compressed ones."""
    outer, rest = trace.protos.Trace(), trace.protos.Trace()
    outer.packet.add().CopyFrom(trace.message.packet[0])
    for packet in trace.message.packet[1:]:
        rest.packet.add().CopyFrom(packet)
    outer.packet.add(compressed_packets=zlib.compress(rest.SerializeToString()))
    content: bytes = outer.SerializeToString()
    return content


def write(path: Path, steps: int = 4) -> Path:
    return trained(steps).write(path)
