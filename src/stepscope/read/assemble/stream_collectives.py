"""Communication on streams: which kernels are collectives, and what the calls that launched them say of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.dense import first_places, places
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.trace.tables import dtype, with_series

#: What a call knows and its kernel may not.
_DETAILS = (
    "group",
    "group_ranks",
    "group_size",
    "dtype",
    "bytes_in",
    "bytes_out",
    "source",
    "destination",
    "sequence",
    "transport",
)
# The host's call that only says it is one, around another that says which.
_NAMELESS = "record_param_comms"


def with_launched(timeline: RankTimeline, operator: Integers) -> RankTimeline:
    """Return the time line with kernels as collectives that a collective launched itself, whatever they are called.

    Args:
        timeline: The spans.
        operator: The innermost operator or collective around the launch of each span; −1 without one.
    """
    if not timeline.on_device.any():
        return timeline
    collective = timeline.of_kinds("collective")
    launched = timeline.of_kinds("kernel") & timeline.on_device & (operator >= 0)
    launched[launched] = collective[operator[launched]]
    if not launched.any():
        return timeline
    kind = pl.when(pl.Series(launched)).then(pl.lit("collective", dtype("enum:kind"))).otherwise(pl.col("kind"))
    return dataclasses.replace(timeline, spans=timeline.spans.with_columns(kind=kind))


def details(timeline: RankTimeline, operator: Integers, collectives: pl.DataFrame) -> pl.DataFrame:
    """Complete the table ``collectives`` by what the launching calls say: a row for every collective on a stream."""
    spans = np.flatnonzero(timeline.of_kinds("collective") & timeline.on_device)
    if not len(spans):
        return collectives
    own = _of_spans(collectives, spans)
    if own["operation"].null_count():
        name = timeline.spans["name"].gather(spans).cast(pl.String).str.to_lowercase()
        own = own.with_columns(pl.col("operation").fill_null(name.cast(own["operation"].dtype)))
    for call in _calls(timeline, operator[spans]):
        if (call < 0).all():
            continue
        said = _of_spans(collectives, call)
        operation = pl.when(said["operation"] != _NAMELESS).then(said["operation"])
        missing = [name for name in _DETAILS if own[name].null_count() and said[name].null_count() < len(said)]
        own = own.with_columns(
            *(pl.col(name).fill_null(said[name]) for name in missing), operation=operation.fill_null(own["operation"])
        )
    others = collectives[np.flatnonzero(~np.isin(collectives["span"].to_numpy(), spans))]
    if not len(others):
        return own
    together = pl.concat([others, own])
    return together[np.argsort(together["span"].to_numpy(), kind="stable")]


def _of_spans(collectives: pl.DataFrame, spans: Integers) -> pl.DataFrame:
    """Return the row of each span, with nothing but the span if it has none."""
    rows = places(first_places(collectives["span"].to_numpy(), spans))
    return with_series(collectives[rows], [pl.Series("span", spans, dtype=collectives["span"].dtype)])


def _calls(timeline: RankTimeline, operator: Integers) -> tuple[Integers, Integers]:
    """Return the innermost collective call around each launch, and the one around that; −1 without one."""
    collective = timeline.of_kinds("collective") & ~timeline.on_device
    nearest = timeline.nearest(collective)
    inner = looked_up(nearest, operator)
    return inner, looked_up(nearest, looked_up(timeline.parent, inner))
