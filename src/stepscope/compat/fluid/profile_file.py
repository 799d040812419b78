"""Write the file of ``paddle.fluid.profiler`` in the original's format, and select the events that its report counts.

:mod:`stepscope.read.paddle.fluid_profile` describes and reads the format; reading a written file returns the same
profile.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.paddle.fluid_profile import CUDA_CALLS, PLACES, Profile
from stepscope.report.timeline.perfetto import protobuf
from stepscope.report.whole_files import replacing

_Rows = npt.NDArray[np.int64]


def write(profile: Profile, path: Path) -> None:
    """Write a profile file (0600); it appears complete or not at all.

    Raises:
        OutputError: The file or its directory cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(encode(profile))


def encode(profile: Profile) -> bytes:
    """Return the bytes of a profile file."""
    starts, ends = (
        [frame[column] for frame in (profile.events, profile.memory) if frame.height] for column in ("ts", "end")
    )
    start = min((int(column.min()) for column in starts), default=0)  # type: ignore[arg-type]
    end = max((int(column.max()) for column in ends), default=0)  # type: ignore[arg-type]
    times = protobuf.integer(2, start) + protobuf.integer(3, end)
    return _events(profile.events) + times + _memory(profile.memory)


def _events(events: pl.DataFrame) -> bytes:
    groups = []
    for (name, detail, copied), rows in _alike(events, "name", "detail", pl.col("bytes").is_not_null()):
        part = events[rows]
        content = protobuf.beside(
            part.height,
            protobuf.text(1, name),
            *(protobuf.integers(field, part[column].to_numpy()) for field, column in ((2, "ts"), (3, "end"))),
            *(protobuf.integers(field, part[column].to_numpy()) for field, column in ((5, "device"), (6, "sub"))),
            *([protobuf.blocks(7, protobuf.integers(1, part["bytes"].to_numpy()))] if copied else []),
            protobuf.integers(8, part["on_gpu"].cast(pl.Int64).to_numpy()),
            protobuf.text(9, detail) if detail else b"",
        )
        groups.append((rows, protobuf.blocks(1, content)))
    return protobuf.interleave(events.height, groups)


def _memory(memory: pl.DataFrame) -> bytes:
    groups = []
    numbered = {"ts": 1, "end": 2, "bytes": 3, "place": 4, "thread": 5, "device": 6}
    place = pl.col("place").replace_strict(dict(zip(PLACES, range(len(PLACES)), strict=True)), return_dtype=pl.Int64)
    memory = memory.with_columns(place)
    for (alloc_in, free_in), rows in _alike(memory, "alloc_in", "free_in"):
        part = memory[rows]
        content = protobuf.beside(
            part.height,
            *(protobuf.integers(field, part[column].to_numpy()) for column, field in numbered.items()),
            protobuf.text(7, alloc_in),
            protobuf.text(8, free_in),
        )
        groups.append((rows, protobuf.blocks(4, content)))
    return protobuf.interleave(memory.height, groups)


def _alike(frame: pl.DataFrame, *keys: str | pl.Expr) -> list[tuple[tuple[str, ...], _Rows]]:
    """Group rows by ``keys``, whose fields have a variable length; in a group, messages differ only in numbers."""
    grouped = frame.with_row_index("row").group_by(*keys, maintain_order=True).agg("row")
    return [(tuple(common), np.array(rows, np.int64)) for *common, rows in grouped.iter_rows()]


def reported(profile: Profile) -> pl.DataFrame:
    """Return the events that the original's report of a profile counts, as :func:`.report.render` takes them.

    Blocks of the program and calls of CUDA are left out. Device work has the name of the event that launched it; its
    time counts for the last event of that name that began before it, and for the events that enclose that one.
    """
    host = profile.events.filter(~pl.col("on_gpu") & (pl.col("device") != CUDA_CALLS))
    # The file has the newest first; in reverse, an event follows those it encloses.
    events = host.filter(~pl.col("name").str.contains(r"^block_-?\d+$")).reverse().with_row_index("row")
    work = profile.events.filter("on_gpu").select("name", "ts", time=pl.col("end") - pl.col("ts"))
    gpu = pl.Series("gpu", np.zeros(events.height, np.int64))
    begun = events.select("name", "ts", "row").sort("ts")
    while work.height:
        found = work.sort("ts").join_asof(begun, on="ts", by="name", check_sortedness=False).drop_nulls("row")
        sums = found.group_by("row").agg(pl.col("time").sum())
        gpu = gpu.scatter(sums["row"], gpu.gather(sums["row"]) + sums["time"])
        inner = work.filter(pl.col("name").str.contains("/", literal=True))
        work = inner.with_columns(pl.col("name").str.replace(r"/[^/]*$", ""))
    return events.select("name", "ts", "end", thread="sub").with_columns(gpu)
