"""Devices: what runs on their streams, by the planes ``/device:…``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE, TrackRow
from stepscope.read.xplane import xplane_kinds
from stepscope.read.xplane.batches import XplaneBatch, batches
from stepscope.read.xplane.compiled_programs import RunInstructions
from stepscope.read.xplane.gathered_rows import XplaneRows
from stepscope.read.xplane.planes import Plane
from stepscope.read.xplane.xplane_events import Line

_DEVICE = re.compile(r"/device:([A-Za-z_]+):(\d{1,9})")
_STREAM = re.compile(r"Stream #(\d{1,18})")
#: Lines of TPUs, on which the device works; their other lines, and those that tools derive, repeat these in groups.
_OPERATIONS_LINE = re.compile(r"(Async )?XLA Ops")
_GROUPS_LINE = re.compile(
    r"(Sparse Core )?(Steps|Modules|Ops|Syncs)\b|XLA (Modules|TraceMe)|(Framework|TensorFlow) (Name Scope|Ops)"
    r"|Launch Stats|Source code|Host Offload Ops|Tensor Core Sync Flag|_counters_"
)
_NUMBER = r"(\d{1,18})"
_SIZES = r"(\d{1,18}),(\d{1,18}),(\d{1,18})"


class XplaneDevice(NamedTuple):
    """A device: what the tables call it, and its number."""

    name: str
    number: int


def device_of(plane: Plane) -> XplaneDevice | None:
    """Return the device of a plane; None where the plane is none's."""
    match = _DEVICE.match(plane.name)
    if match is None:
        return None
    sort = "cuda" if match[1] == "GPU" else match[1].lower()
    return XplaneDevice(f"{sort}:{match[2]}", int(match[2]))


@dataclass(frozen=True)
class DevicePlane:
    """A plane with streams."""

    plane: Plane
    device: XplaneDevice
    rows: XplaneRows
    operations: RunInstructions

    def read(self) -> list[str]:
        """Read all streams; return the names of lines that are not known."""
        unknown = []
        for line in self.plane.lines:
            name = line.name.decode("utf-8", "replace")
            stream = _STREAM.match(name)
            if stream or _OPERATIONS_LINE.match(name):
                self._stream(line, name, int(stream[1]) if stream else line.id)
            else:
                self._lane(line, name)
                unknown += [] if _GROUPS_LINE.match(name) else [name]
        return unknown

    def _stream(self, line: Line, name: str, stream: int) -> None:
        kind_of = xplane_kinds.device_kinds(self.plane.event_names)
        track = self.rows.track(TrackRow("stream", self.device.name, name, stream=stream))
        for batch in self._batches(line):
            operation = self.operations.of(batch)
            correlation = batch.integers("correlation_id")
            first = self.rows.add(batch, track, kind_of[batch.place], correlation=correlation, operation=operation)
            self.rows.part.add("kernels", self._kernels(batch, stream, first))
            self.rows.put("starts", _starts(batch, operation, self.device.number))

    def _lane(self, line: Line, name: str) -> None:
        """Read a line that shows groups of what the streams do, or that is not known: nothing counts its events."""
        track = self.rows.track(TrackRow("annotation", self.device.name, name))
        for batch in self._batches(line):
            kind = np.full(len(batch), KIND_CODE["annotation"], np.uint8)
            none = np.full(len(batch), -1, np.int64)
            self.rows.add(batch, track, kind, correlation=batch.integers("correlation_id"), operation=none)

    def _batches(self, line: Line) -> list[XplaneBatch]:
        nothing = np.zeros(len(self.plane.event_names), np.bool_)
        return list(batches(self.plane, line, nothing))

    def _kernels(self, batch: XplaneBatch, stream: int, first: int) -> pl.DataFrame:
        copied = pl.col("copy").str.extract(rf"\bsize:{_NUMBER}").cast(pl.Int64)
        frame = pl.DataFrame(
            {
                "span": np.arange(first, first + len(batch)),
                "dur": batch.dur,
                "context": _number(batch, "context_id"),
                "graph": _number(batch, "cuda_graph_id"),
                "graph_node": _number(batch, "cuda_graph_node_id"),
                "copy": batch.texts("memcpy_details").fill_null(batch.texts("memset_details")),
                **_details(batch.texts("kernel_details")),
            }
        )
        bandwidth = pl.when((pl.col("dur") > 0) & pl.col("bytes").is_not_null()).then(pl.col("bytes") / pl.col("dur"))
        frame = frame.with_columns(device=self.device.number, stream=stream, bytes=copied.replace(0, None))
        return frame.with_columns(bandwidth=bandwidth).drop("copy", "dur")


def _number(batch: XplaneBatch, name: str) -> pl.Series:
    """Return an integer stat, which some versions write as text."""
    return batch.integers(name).fill_null(batch.texts(name).cast(pl.Int64, strict=False))


def _details(texts: pl.Series) -> dict[str, pl.Series]:
    """Return what a text says of the launch of a kernel.

    NVIDIA: ``regs:32 static_shared:0 dynamic_shared:0 grid:16,1,1 block:512,1,1 occ_pct:100``; AMD: ``grid:16,1,1
    block:512,1,1 private_mem:0 group_mem:2112 occ_pct:0``, with no word on occupancy.
    """

    def number(name: str) -> pl.Expr:
        return pl.col("text").str.extract(rf"\b{name}:{_NUMBER}").cast(pl.Int64, strict=False)

    def sizes(name: str) -> pl.Expr:
        parts = pl.col("text").str.extract_groups(rf"\b{name}:{_SIZES}")
        columns = [parts.struct.field(str(place)).cast(pl.Int64, strict=False) for place in (1, 2, 3)]
        return pl.when(columns[0].is_not_null()).then(pl.concat_list(columns))

    distinct = texts.unique(maintain_order=True)
    occupancy = pl.col("text").str.extract(r"\bocc_pct:([\d.]{1,20})").cast(pl.Float64, strict=False)
    known = pl.DataFrame({"text": distinct}).select(
        "text",
        grid=sizes("grid"),
        block=sizes("block"),
        registers=number("regs"),
        shared_memory=number("static_shared").fill_null(0)
        + number("dynamic_shared").fill_null(0)
        + number("group_mem").fill_null(0),
        occupancy=pl.when(occupancy > 0).then(occupancy),
    )
    known = known.with_columns(shared_memory=pl.when(pl.col("text").is_not_null()).then("shared_memory"))
    joined = pl.DataFrame({"text": texts}).join(known, on="text", how="left", nulls_equal=True, maintain_order="left")
    return {name: joined[name] for name in ("grid", "block", "registers", "shared_memory", "occupancy")}


def _starts(batch: XplaneBatch, operation: Integers, device: int) -> pl.DataFrame:
    """Return when each operation of a program began, for the steps where nothing declares any."""
    chosen = operation >= 0
    return pl.DataFrame(
        {
            "operation": pl.Series(operation[chosen], dtype=pl.Int32),
            "place": pl.Series(batch.place[chosen], dtype=pl.Int32),
            "device": pl.Series(np.full(int(chosen.sum()), device), dtype=pl.Int32),
            "ts": batch.ts[chosen],
            "end": batch.ts[chosen] + batch.dur[chosen],
        }
    )
