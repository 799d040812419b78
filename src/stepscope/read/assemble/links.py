"""What launched what: device work → runtime call → operator, forward → backward, and marks → the span around them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.dense import distinct_rows, first_places
from stepscope.read.common.nesting import Integers
from stepscope.trace.schema import FLOW_KINDS
from stepscope.trace.tables import dtype, empty, of_columns, together

_KIND = {kind: pl.Series("kind", [kind], dtype("enum:flow_kind")) for kind in FLOW_KINDS}


def launches(timeline: RankTimeline, arrows: pl.DataFrame) -> Integers:
    """Return for each span on a device the runtime or driver call that launched it; −1 if unknown.

    The correlation number says so; device work without one has an arrow from the call to its start.
    """
    device, drawn = timeline.on_device, _of_kind(arrows, launching=True)
    if not device.any() and not drawn.height:
        return timeline.nowhere
    # A driver call inside a runtime call may carry the same number; the outer one, which comes first, launched.
    result = _same_number(timeline, "correlation", timeline.of_kinds("runtime", "driver"), device)
    if drawn.height:
        start = timeline.starting(drawn["to_track"].to_numpy(), drawn["to_ts"].to_numpy())
        call = timeline.at(drawn["from_track"].to_numpy(), drawn["from_ts"].to_numpy())
        usable = (start >= 0) & (call >= 0)
        usable[usable] &= result[start[usable]] < 0
        usable[usable] &= timeline.of_kinds("runtime", "driver")[call[usable]]
        result[start[usable]] = call[usable]
    return result


def operators(timeline: RankTimeline, launch: Integers) -> Integers:
    """Return for each span on a device the innermost operator around its launch; −1 without one.

    If the launching call lies in no operator, the device work's own number of an operator names it.
    """
    if not timeline.on_device.any():
        return timeline.nowhere
    candidates = timeline.of_kinds("operator", "collective") & ~timeline.on_device
    result = np.full(len(launch), -1, np.int64)
    launched = launch >= 0
    result[launched] = timeline.nearest(candidates)[launch[launched]]
    if timeline.given("external") is None:
        return result
    open_work = timeline.on_device & (result < 0)
    if timeline.given("correlation") is not None and open_work.any():
        # Some writers repeat the correlation number as the operator's: that says nothing.
        external, correlation = timeline.integers("external"), timeline.integers("correlation")
        open_work &= (external[0] != correlation[0]) | (external[1] != correlation[1])
    if not open_work.any():
        return result
    return np.where(open_work, _same_number(timeline, "external", candidates, open_work), result)


def _same_number(
    timeline: RankTimeline, column: str, givers: npt.NDArray[np.bool_], takers: npt.NDArray[np.bool_]
) -> Integers:
    """Return for each taker the first giver of the same part with the same number; −1 for all others."""
    result = np.full(len(timeline), -1, np.int64)
    if timeline.given(column) is None:
        return result
    values, known = timeline.integers(column)
    for number in range(int(timeline.part.max(initial=-1)) + 1):
        of_part = known & (timeline.part == number)
        giving, taking = np.flatnonzero(of_part & givers), np.flatnonzero(of_part & takers)
        place = first_places(values[giving], values[taking])
        result[taking[place >= 0]] = giving[place[place >= 0]]
    return result


def flows(timeline: RankTimeline, launch: Integers, arrows: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``flows``: launches, forward → backward, and arrows of other kinds."""
    launched = np.flatnonzero(launch >= 0)
    parts = [_table(launch[launched], launched, "launch")]
    drawn = _of_kind(arrows, launching=False)
    if drawn.height:
        begin, end = _operators_at(timeline, drawn, "from"), _operators_at(timeline, drawn, "to")
        for kind in ("forward_backward", "send_receive", "other"):
            chosen = (drawn["kind"] == kind).to_numpy() & (begin >= 0) & (end >= 0)
            parts.append(_table(begin[chosen], end[chosen], kind))
        waits = drawn[np.flatnonzero(drawn["kind"] == "wait")]
        begin, end = (
            timeline.starting(waits[f"{side}_track"].to_numpy(), waits[f"{side}_ts"].to_numpy())
            for side in ("from", "to")
        )
        known = (begin >= 0) & (end >= 0)
        parts.append(_table(begin[known], end[known], "wait"))
    if not drawn.height or not (drawn["kind"] == "forward_backward").any():
        parts.append(_by_sequence(timeline))
    return together("flows", parts)


def _table(begin: Integers, end: Integers, kind: str) -> pl.DataFrame:
    kinds = _KIND[kind].new_from_index(0, len(begin))
    return of_columns([pl.Series("from", begin, pl.Int64), pl.Series("to", end, pl.Int64), kinds])


def _of_kind(arrows: pl.DataFrame, *, launching: bool) -> pl.DataFrame:
    """Return the arrows of launches, or all others."""
    return arrows.filter((arrows["kind"] == "launch") == launching) if arrows.height else arrows


def _operators_at(timeline: RankTimeline, arrows: pl.DataFrame, side: str) -> Integers:
    """Return the operator with a sequence number that starts where an arrow is, else the innermost span around it."""
    track, ts = arrows[f"{side}_track"].to_numpy(), arrows[f"{side}_ts"].to_numpy()
    exact = timeline.starting(track, ts, timeline.of_kinds("operator") & timeline.integers("sequence")[1])
    return np.where(exact >= 0, exact, timeline.at(track, ts))


def _by_sequence(timeline: RankTimeline) -> pl.DataFrame:
    """Match forward and backward by autograd's sequence number where the file draws no arrows.

    Of several operators with one number on the forward side the last one made the graph node, as Kineto has it; on the
    backward side the outermost is the node's evaluation.
    """
    if timeline.given("sequence") is None or timeline.given("forward_thread") is None:
        return empty("flows")
    sequence, known = timeline.integers("sequence")
    forward_thread, _ = timeline.integers("forward_thread")
    spans = np.flatnonzero(timeline.of_kinds("operator") & known & (sequence >= 0))
    spans = spans[np.argsort(timeline.ts[spans], kind="stable")]
    first, node = distinct_rows([timeline.part[spans], sequence[spans]])
    backward = forward_thread[spans] > 0
    # Of several assignments to one node the last stays.
    begin, end = np.full(len(first), -1, np.int64), np.full(len(first), -1, np.int64)
    begin[node[~backward]] = spans[~backward]
    end[node[backward][::-1]] = spans[backward][::-1]
    paired = (begin >= 0) & (end >= 0)
    begin, end = begin[paired], end[paired]
    in_time = timeline.ts[begin] <= timeline.ts[end]
    order = np.argsort(begin[in_time])
    return _table(begin[in_time][order], end[in_time][order], "forward_backward")
