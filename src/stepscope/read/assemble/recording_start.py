"""What began before the recording: device work that the program launched earlier, and times of other recordings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import whole_number
from stepscope.read.common.torch_events import STEP_NAME
from stepscope.trace.clock import APART_NS
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import with_series

Mask = npt.NDArray[np.bool_]


def count_losses(timeline: RankTimeline, launch: Integers, before: Mask, ledger: LossLedger) -> None:
    """Count device work whose launching call is not in the files, and spans of another time than most of them.

    Args:
        timeline: The spans.
        launch: What launched each; −1 if unknown.
        before: Which were launched before the recording began.
        ledger: Takes the counts.
    """
    work = timeline.on_device & timeline.of_kinds("kernel", "memcpy", "memset", "collective", "other")
    ledger.add("launched_before_recording", int(before.sum()))
    ledger.add("correlation_dangling", int((work & (launch < 0) & ~before).sum()))
    if not len(timeline) or int(timeline.ts.max()) - int(timeline.ts.min()) <= APART_NS:
        return
    ts = np.sort(timeline.ts)
    recordings = np.diff(np.flatnonzero(np.diff(ts, prepend=ts[0] - 2 * APART_NS) > APART_NS), append=len(ts))
    ledger.add("epochs_apart", int(recordings.sum() - recordings.max()))


def launched_before(timeline: RankTimeline, launch: Integers) -> Mask:
    """Return which device work was launched before the recording began.

    Runtimes number their calls in order: its number is smaller than that of every call of its file.
    """
    number, known = timeline.integers("correlation")
    calls = timeline.of_kinds("runtime", "driver") & known & (number > 0)
    result = np.zeros(len(timeline), np.bool_)
    if not calls.any() or not timeline.on_device.any():
        return result
    first = np.full(int(timeline.part.max()) + 1, np.iinfo(np.int64).min)
    for part in np.unique(timeline.part[calls]).tolist():
        first[part] = number[calls & (timeline.part == part)].min()
    open_work = timeline.on_device & known & (number > 0) & (launch < 0)
    open_work &= timeline.of_kinds("kernel", "memcpy", "memset", "collective", "other")
    result[open_work] = number[open_work] < first[timeline.part[open_work]]
    return result


def steps(timeline: RankTimeline, launch: Integers, before: Mask, found: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with the number of pieces of work that were launched before the recording and begin in them.

    Where there are some, and the profiler projected every step onto the device, the steps are those of the device:
    there such work lies before the first one.
    """
    if not found.height or not (timeline.on_device & (launch >= 0)).any():
        return found
    ts = np.sort(timeline.ts[before])
    counted = _counted(found, ts)
    if counted.any() and (own := _on_device(timeline, launch, found)) is not None:
        found, counted = own, _counted(own, ts)
    return with_series(found, [pl.Series("launched_before", counted, dtype=pl.Int64)])


def _counted(found: pl.DataFrame, ts: Integers) -> Integers:
    begin, dur = found["ts"].to_numpy(), found["dur"].to_numpy()
    counted: Integers = np.searchsorted(ts, begin + dur) - np.searchsorted(ts, begin)
    return counted


def _on_device(timeline: RankTimeline, launch: Integers, found: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps from the first work of each on the device to that of the next; None if one has no range there.

    A range covers the work that was launched right under the mark of the step, not under a range within it, so the
    work that was launched during the step counts, too.
    """
    lanes = (timeline.tracks["kind"] == "annotation").to_numpy()[timeline.track]
    number_of = {
        code: whole_number(m[1]) for code, name in timeline.distinct(lanes).items() if (m := STEP_NAME.match(name))
    }
    spans = np.flatnonzero(lanes & np.isin(timeline.codes, list(number_of)))
    marked = np.array([number_of[code] for code in timeline.codes[spans].tolist()], np.int64)
    steps = found.sort("ts")
    numbers, begin, dur = (steps[name].to_numpy() for name in ("number", "ts", "dur"))
    if not np.isin(numbers, marked).all():
        return None
    work = np.flatnonzero(timeline.on_device & (launch >= 0))
    at = timeline.ts[launch[work]]
    place = np.searchsorted(begin, at, side="right") - 1
    inside = (place >= 0) & (at < (begin + dur)[place])
    own = pl.DataFrame(
        {
            "number": np.concatenate((marked, numbers[place[inside]].astype(np.int64))),
            "begin": timeline.ts[np.concatenate((spans, work[inside]))],
            "end": timeline.end[np.concatenate((spans, work[inside]))],
        }
    )
    by_number = own.group_by("number").agg(pl.col("begin").min(), pl.col("end").max())
    joined = found.with_columns(pl.col("number").cast(pl.Int64)).join(
        by_number, on="number", how="left", maintain_order="left"
    )
    first = joined["begin"]
    if not first.is_sorted():
        return None
    last = first.shift(-1).fill_null(joined["end"].max())
    return found.with_columns(first.alias("ts"), (last - first).alias("dur"))
