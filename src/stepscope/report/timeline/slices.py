"""A rank as a picture: slices on lanes, arrows between them, counters. What both timeline formats write.

Nothing is dropped silently: slices that cross get another lane, arrows that cannot be drawn are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.report.protocol import Source
from stepscope.report.timeline import lanes
from stepscope.report.timeline.places import Lane, Places, Process
from stepscope.report.timeline.slice_arguments import Details
from stepscope.report.timeline.word_lists import Vocabulary
from stepscope.trace.tables import Tables, label_of

Rows = npt.NDArray[np.int64]

#: Track of the slices made from the table `steps`; real tracks are numbered from 0.
_STEPS = -1


@dataclass(frozen=True, eq=False)
class Counter:
    """One curve.

    Attributes:
        process: Where it is shown.
        name: Name to show, unique in its process.
        unit: Unit of the values.
        samples: Columns ``ts`` (ns) and ``value`` (finite), in order of time.
    """

    process: Process
    name: str
    unit: str
    samples: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Timeline:
    """What is drawn.

    Attributes:
        slices: One row per slice, by track, start, longest first: ``id`` (``spans.id``; null for steps), ``ts`` and
            ``dur`` in ns, ``name`` (a number of ``names``), ``kind``, ``lane`` (an index in ``lanes``),
            ``correlation``, ``sequence``.
        names: Names of the slices.
        lanes: The lanes.
        processes: The processes, in order.
        details: Arguments of the slices.
        arrows: Rows of ``slices`` from and to, and ``kind``; an arrow never points back in time.
        counters: The curves.
        crossing: Number of slices that lie on an extra lane because they cross others.
        arrows_left_out: Number of arrows not drawn: an end is missing, or it would point back in time.
        rank: Rank of the process.
        label: Label of the first process: which parts of a step were not recorded; else empty.
    """

    slices: pl.DataFrame
    names: Vocabulary
    lanes: list[Lane]
    processes: list[Process]
    details: Details
    arrows: pl.DataFrame
    counters: list[Counter]
    crossing: int
    arrows_left_out: int
    rank: int
    label: str = ""

    @property
    def start(self) -> int:
        """The first time in the picture, in ns; 0 when it is empty."""
        firsts = [self.slices["ts"].min(), *(counter.samples["ts"].min() for counter in self.counters)]
        return min((first for first in firsts if isinstance(first, int)), default=0)


def build(source: Source, *, step_name: str, marked_steps: bool) -> Timeline:
    """Lay out a rank.

    Args:
        source: Its tables.
        step_name: Name of a step's slice; the step's number is put behind it.
        marked_steps: Whether steps that the source file already marked, under that name, get a slice as well.
    """
    tables = source.tables
    places = Places(tables["tracks"].sort("order", "id").collect().to_dicts(), source.label)
    columns = ("id", "track", "ts", "dur", "name", "kind", "correlation", "sequence")
    spans = tables["spans"].select(columns).with_columns(pl.col("kind").cast(pl.String)).collect()
    steps = _steps(tables, step_name)
    if not marked_steps:
        steps = steps.join(spans.filter(pl.col("kind") == "step").select("ts", "name"), on=["ts", "name"], how="anti")
    spans = pl.concat([spans, steps], how="vertical_relaxed")
    position = _places(spans["track"], places)
    order, number = lanes.assign(position, spans["ts"].to_numpy(), spans["dur"].to_numpy())
    lane, all_lanes = _lanes(position[order], number[order], places)
    names = Vocabulary()
    slices = spans.with_columns(names.add(spans["name"]))[order].with_columns(lane)
    arrows, left_out = _arrows(tables, slices)
    counters = [*_counters(tables, places), *_memory(tables, places)]  # a process may have nothing but these
    return Timeline(
        slices=slices.drop("track"),
        names=names,
        lanes=all_lanes,
        processes=places.processes,
        details=Details.collect(tables),
        arrows=arrows,
        counters=counters,
        crossing=int(np.count_nonzero(number)),
        arrows_left_out=left_out,
        rank=places.rank,
        label=label_of(tables),
    )


def _steps(tables: Tables, step_name: str) -> pl.DataFrame:
    steps = tables["steps"].select(
        id=pl.lit(None, pl.Int64),
        track=pl.lit(_STEPS, pl.Int32),
        ts="ts",
        dur="dur",
        name=(pl.lit(step_name) + pl.col("number").cast(pl.String)).cast(pl.Categorical),
        kind=pl.lit("step"),
        correlation=pl.lit(None, pl.Int64),
        sequence=pl.lit(None, pl.Int64),
    )
    return steps.collect()


def _places(track: pl.Series, places: Places) -> Rows:
    """Return for each span the position of its track among those shown; steps come before all others."""
    largest = max((row["id"] for row in places.tracks), default=0)
    position_of = np.full(largest + 2, -1, np.int64)  # steps find the last one, by the index -1
    for position, row in enumerate(places.tracks):
        position_of[row["id"]] = position
    found: Rows = position_of[track.to_numpy()]
    return found


def _lanes(position: Rows, number: Rows, places: Places) -> tuple[pl.Series, list[Lane]]:
    """Make the lanes of all pairs of track and number, and return the index of each pair's lane."""
    pairs, lane = np.unique(position << 32 | number, return_inverse=True)
    made: list[Lane] = []
    for pair in pairs.tolist():
        track, extra = pair >> 32, pair & 0xFFFFFFFF
        made.append(places.steps_lane(extra) if track < 0 else places.lane(places.tracks[track], extra))
    return pl.Series("lane", lane, dtype=pl.Int32), made


def _arrows(tables: Tables, slices: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the arrows between rows of ``slices``, and how many cannot be drawn."""
    flows = tables["flows"].select("from", "to", pl.col("kind").cast(pl.String)).collect()
    ends = slices.lazy().select("id", "ts").with_row_index("row").filter(pl.col("id").is_not_null())
    origin = ends.select(pl.col("id").alias("from"), pl.col("row").alias("origin"), pl.col("ts").alias("begin"))
    target = ends.select(pl.col("id").alias("to"), pl.col("row").alias("target"), pl.col("ts").alias("end"))
    begun = flows.lazy().join(origin, on="from", maintain_order="left")
    joined = begun.join(target, on="to", maintain_order="left").filter(pl.col("begin") < pl.col("end"))
    arrows = joined.select("origin", "target", "kind").collect()
    return arrows, len(flows) - len(arrows)


def _counters(tables: Tables, places: Places) -> list[Counter]:
    samples = tables["counters"].filter(pl.col("value").is_finite()).sort("ts").collect()
    curves = samples.partition_by("track", "name", "unit", as_dict=True, maintain_order=True)
    rows = {row["id"]: row for row in places.tracks}
    made = []
    for (track, name, unit), part in curves.items():
        row = rows[track]
        ambiguous = row["name"] not in ("", name)
        label = f"{row['name']}: {name}" if ambiguous else str(name)
        made.append(Counter(places.of(row), label, str(unit), part.select("ts", "value")))
    return made


def _memory(tables: Tables, places: Places) -> list[Counter]:
    """Return the memory of each device as two curves, allocated and reserved."""
    samples = tables["allocations"].select("ts", "device", "allocated", "reserved").sort("ts").collect()
    made = []
    for (device,), part in samples.partition_by("device", as_dict=True, maintain_order=True).items():
        for column in ("allocated", "reserved"):
            curve = part.select("ts", pl.col(column).cast(pl.Float64).alias("value")).drop_nulls()
            if len(curve):
                made.append(Counter(places.of_device(device), f"memory {column} {device}", "bytes", curve))
    return made
