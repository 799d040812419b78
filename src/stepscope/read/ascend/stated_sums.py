"""The sums that Ascend's profilers state themselves: of steps, of types of operators, of calls, and Overlap Analysis.

They are compared with the same sums of what was read. If the capture lacks what they sum up, results are made of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import polars as pl

from stepscope.read.ascend.ascend_frames import Frames, conform, empty
from stepscope.read.ascend.ascend_kinds import task_kinds
from stepscope.read.ascend.text.csv_rows import AscendRows
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import LARGEST_TIME
from stepscope.read.common.stated_totals import StatedTotals
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import STATED

COMPUTING, COMMUNICATION, EXPOSED = "computing", "communication", "communication that no computing hides"
OPERATORS, CALLS, COLLECTIVES = "operators on the device", "calls of CANN", "operations of communication"
#: Lane of Overlap Analysis → what it states; also by its number in databases.
LANES = {"Computing": COMPUTING, "Communication": COMMUNICATION, "Communication(Not Overlapped)": EXPOSED}
#: Result → its columns of text, then those of numbers; the columns of the files have the same names.
RESULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "step_trace_time": (
        (),
        (
            *("Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage"),
            *("Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing"),
        ),
    ),
    "op_statistic": (
        ("OP Type", "Core Type"),
        ("Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)", "Ratio(%)"),
    ),
    "api_statistic": (
        ("Level", "API Name"),
        ("Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
    ),
}
#: Level of ``api_statistic.csv``, in lower case → as our result calls it.
_LEVELS = {
    **{"acl": "AscendCL", "ascendcl": "AscendCL", "model": "Model", "node": "Node", "runtime": "Runtime"},
    **{"hccl": "Communication", "communication": "Communication"},
}
#: Steps in which work begins have it as a whole, as Ascend counts it.
_NS = 1000


def of_rows(rows: AscendRows, result: str) -> pl.DataFrame:
    """Return rows of a file of sums under the columns of a result; a column that the file lacks is null."""
    texts, numbers = RESULTS[result]
    columns = [rows.text(name).cast(pl.String).alias(name) for name in texts]
    frame = pl.DataFrame([*columns, *(rows.real(name).alias(name) for name in numbers)])
    if "Level" in texts:
        level = pl.col("Level").str.to_lowercase().replace_strict(_LEVELS, default=None)
        frame = frame.with_columns(pl.coalesce(level, "Level").alias("Level"))
    # Lines of something else have no numbers.
    return frame.filter(~pl.all_horizontal(pl.col(numbers).is_null()))


def of_table(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the table ``StepTraceTime`` under the columns of ``step_trace_time``."""
    return rows.select(
        pl.col(in_database(name)).cast(pl.String).cast(pl.Float64, strict=False).alias(name) for name in STEP_COLUMNS
    )


def in_database(column: str) -> str:
    """Return what a column of ``step_trace_time.csv`` is called in a database."""
    return column.lower().replace("(", "_").replace(")", "").replace(" ", "_")


STEP_COLUMNS = RESULTS["step_trace_time"][1]


def fact(result: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows that a source states of a result as a row of ``facts``."""
    return pl.DataFrame({"key": [STATED + result], "value": [json.dumps(rows.to_dicts())]})


def sums(result: str, rows: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return what the rows of a result sum up to, as the frame ``stated``."""
    if result == "step_trace_time":
        found: list[dict[str, object]] = [
            {"what": what, "ns": _total(rows[lane], _NS), "in_steps": rows["Step"].is_not_null().all()}
            for lane, what in LANES.items()
        ]
    elif result == "op_statistic":
        found = [{"what": OPERATORS, "ns": _total(rows["Total Time(us)"], _NS), "count": _total(rows["Count"])}]
    else:
        found = [{"what": CALLS, "ns": _total(rows["Time(us)"], _NS), "count": _total(rows["Count"])}]
    return _stated(found, source)


def of_operations(operations: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return what the rows of ``communication.json`` sum up to, as the frame ``stated``."""
    row = {"what": COLLECTIVES, "ns": _total(operations["dur"]), "count": operations.height}
    return _stated([{**row, "in_steps": operations["step"].is_not_null().all()}] if operations.height else [], source)


def of_lanes(lanes: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the sums of the lanes of Overlap Analysis, as the frame ``stated``.

    Args:
        lanes: Columns ``lane`` and ``dur`` (ns), a row for each of its events.
        source: Where they stand.
    """
    total = dict(lanes.group_by(pl.col("lane").cast(pl.String)).agg(pl.col("dur").sum()).iter_rows())
    # A lane without events states that there was nothing.
    found = [{"what": what, "ns": total.get(lane, 0)} for lane, what in LANES.items()] if len(lanes) else []
    return _stated(found, source)


def _stated(found: list[dict[str, object]], source: str) -> pl.DataFrame:
    if not found:
        return empty("stated")
    rows = [{"source": source, "count": None, "in_steps": False, **one} for one in found]
    for row in rows:
        # A number that 64 bits do not hold is damage: it states nothing.
        row.update((key, None) for key, value in row.items() if isinstance(value, int) and abs(value) > LARGEST_TIME)
    return conform("stated", pl.DataFrame(rows, schema_overrides={"count": pl.Int64, "ns": pl.Int64}))


def _total(column: pl.Series, factor: int = 1) -> int | None:
    known = column.drop_nulls()
    return round(float(known.sum()) * factor) if len(known) else None


def compared(frames: Frames) -> list[StatedTotals]:
    """Compare what the source states with the frames; what they lack is not compared."""
    stated = frames["stated"]
    totals = {
        name: StatedTotals(LossLedger(str(name)))
        for name in stated["source"].cast(pl.String).unique(maintain_order=True)
    }
    ours = _FrameSums(frames)
    found: dict[tuple[str, bool], tuple[int, int] | None] = {}
    for row in stated.to_dicts():
        key = row["what"], bool(row["in_steps"])
        if key not in found:
            found[key] = ours.of(*key)
        if (sums := found[key]) is not None:
            totals[row["source"]].times(row["what"], row["ns"], sums[0])
            totals[row["source"]].counts(row["what"], row["count"], sums[1])
    return list(totals.values())


class _FrameSums:
    """The sums of what was read, as the profiler counts them."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._tasks = frames["tasks"].filter(pl.col("dur") >= 0)
        self._kinds = task_kinds(self._tasks)

    def of(self, what: str, in_steps: bool) -> tuple[int, int] | None:  # noqa: FBT001
        """Return ns and number of what the frames have of a sum; None if they have nothing of the sort."""
        if what == CALLS:
            calls = self._frames["host"].filter(pl.col("sort") == "api")
            return (int(calls["dur"].sum()), calls.height) if calls.height else None
        if what == OPERATORS:
            kernels = self._tasks.filter((self._kinds == "kernel") & self._tasks["op_type"].is_not_null())
            return (int(kernels["dur"].sum()), kernels.height) if kernels.height else None
        if not self._tasks.height:
            return None
        if what == COLLECTIVES:
            known = self._frames["communications"].filter(pl.col("dur") >= 0).sort("ts")
            spans = known["ts"].to_numpy(), (known["ts"] + known["dur"]).to_numpy()
            ts, end = self._begun(*spans) if in_steps else spans
            return int((end - ts).sum()), len(ts)
        lanes = [self._begun(*lane) if in_steps else lane for lane in self._lanes[what]]
        return sum(int((end - ts).sum()) for ts, end in lanes), sum(len(ts) for ts, _ in lanes)

    @cached_property
    def _lanes(self) -> dict[str, list[tuple[Integers, Integers]]]:
        """Return the lanes of Overlap Analysis, of each device."""
        works = self._tasks.filter(self._kinds.is_in(["kernel", "memset", "other"]))
        devices = pl.concat([works["device"], self._frames["communications"]["device"]]).unique()
        lanes: dict[str, list[tuple[Integers, Integers]]] = {COMPUTING: [], COMMUNICATION: [], EXPOSED: []}
        for device in devices:
            of_device = pl.col("device").eq_missing(device)
            computing = _united(works.filter(of_device))
            communication = _united(self._frames["communications"].filter(of_device, pl.col("dur") >= 0))
            for what, lane in zip(lanes, (computing, communication, _without(communication, computing)), strict=True):
                lanes[what].append(lane)
        return lanes

    def _begun(self, ts: Integers, end: Integers) -> tuple[Integers, Integers]:
        """Return what begins in a step; everything without steps."""
        steps = self._frames["steps"].drop_nulls().sort("ts")
        if not steps.height:
            return ts, end
        begin, dur = steps["ts"].to_numpy(), steps["dur"].to_numpy()
        place = np.searchsorted(begin, ts, side="right") - 1
        inside = (place >= 0) & (ts < (begin + dur)[place])
        return ts[inside], end[inside]


def _united(spans: pl.DataFrame) -> tuple[Integers, Integers]:
    """Return starts and ends of the time that spans cover, in order."""
    known = spans.select("ts", end=pl.col("ts") + pl.col("dur")).drop_nulls().sort("ts")
    ts, end = known["ts"].to_numpy(), known["end"].to_numpy()
    if not len(ts):
        return ts, end
    latest = np.maximum.accumulate(end)
    first = np.concatenate(([True], ts[1:] > latest[:-1]))
    return ts[first], latest[np.append(np.flatnonzero(first)[1:], len(ts)) - 1]


def _without(lane: tuple[Integers, Integers], other: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """Return starts and ends of the time of a lane that another does not cover."""
    edges = np.concatenate((*lane, *other))
    change = np.repeat(np.array([1, -1, -2, 2]), [len(lane[0])] * 2 + [len(other[0])] * 2)
    order = np.argsort(edges, kind="stable")
    at, state = edges[order], np.cumsum(change[order])
    open_ = np.flatnonzero((state == 1)[:-1] & (at[1:] > at[:-1])) if len(at) else np.zeros(0, np.int64)
    return at[open_], at[open_ + 1]


def facts(sources: Iterable[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Return what sources state of results as rows of ``facts``; of several of one result the first."""
    rows = [fact(result, frame) for result, frame in sources if frame.height]
    return pl.concat(rows).unique("key", keep="first", maintain_order=True) if rows else empty("facts")
