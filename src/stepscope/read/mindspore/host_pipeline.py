"""MindSpore's host pipeline (``RuntimeProfilerDetail*.csv``) → spans on real threads.

A line is ``module:Kernel, event:KernelLaunch, op:MatMul, start_time:…, end_time:…, dur_time:,36261,ns, tid:…, pid:…``
in ns since the epoch; ``stage:RunGraph`` stands in place of a module for what happens around the operators. Names may
hold commas. Arrows of the queues are lines that end before they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from stepscope.read.common.part_builder import sound_spans
from stepscope.read.common.plain_text import lines_of
from stepscope.read.common.stated_totals import StatedTotals
from stepscope.trace.losses import LossLedger

_LINE = (
    r"^(?<sort>module|stage):(?<module>.*?), event:(?<event>.*?), op:(?<op>.*), start_time:(?<ts>\d+), "
    r"end_time:(?<end>\d+), dur_time:,\d+,ns, tid:(?<thread>\d+), pid:(?<process>\d+)\s*$"
)
_HEADER = r"^\[Step:\d+ step_time:.*\]\s*$"
_NAMELESS = "Default"
#: Events that wait for another thread or for a stream, whatever module reports them.
_WAITS = r"^(Wait.*|AcquireGil|StreamSync|SyncStream)$"
#: Events that last as long as the operator that they start.
LAUNCHES = ("KernelLaunch", "LaunchTask")
#: The call that asks for a run of a compiled graph; and of the thread that runs it, the wait for its last operator.
_ASKED, _COMPUTED, _LAST = "BackendGraphRunInner", "WaitTaskFinish", "_LoopCountActor"
#: Lines of ``RuntimeProfilerSummary*.csv`` that sum up events, and one that is what lies outside of all others.
_SUM = r"^(?:  Event|  EventInner|(?<stage>Stage)):(?<name>.*?), total_time:(?<ns>\d+)ns, .*total_count:(?<count>\d+)"
_OUTSIDE = "Python"

SCHEMA = {
    "ts": pl.Int64,
    "dur": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "op": pl.String,
    "thread": pl.Int64,
    "process": pl.Int64,
}


def read(paths: Sequence[Path], ledger: LossLedger) -> pl.DataFrame:
    """Return the events of all files: ts, dur, name, kind, op (type of the operator), thread, process."""
    frames = [_read_file(path, ledger) for path in paths]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *frames]).sort("ts", maintain_order=True)


def _read_file(path: Path, ledger: LossLedger) -> pl.DataFrame:
    lines = lines_of(path, ledger)
    events = lines.filter(~lines.str.contains(_HEADER)).to_frame()
    parsed = events.select(pl.col("line").str.extract_groups(_LINE).alias("at")).unnest("at")
    whole = parsed.filter(pl.col("sort").is_not_null())
    ledger.add("event_damaged", parsed.height - whole.height)
    numbers = whole.with_columns(pl.col("ts", "end", "thread", "process").cast(pl.Int64, strict=False))
    arrows = (pl.col("op") == "flow") & (pl.col("end") < pl.col("ts"))
    spans = numbers.filter(~arrows.fill_null(value=False))
    ledger.add("event_not_an_interval", numbers.height - spans.height)
    spans = sound_spans(spans.with_columns(dur=pl.col("end") - pl.col("ts")), ledger)
    name = _first_named("event", "op", "module")
    kind = pl.when(name.str.contains(_WAITS)).then(pl.lit("sync")).otherwise(pl.lit("runtime"))
    return spans.with_columns(name=name, kind=kind).select(list(SCHEMA)).drop_nulls(["thread", "process"])


def totals(sums: Sequence[Path], details: Sequence[Path], events: pl.DataFrame) -> StatedTotals:
    """Compare numbers and times of events with those that ``RuntimeProfilerSummary*.csv`` states of the same files."""
    compared = StatedTotals(LossLedger(", ".join(path.name for path in sums)))
    lines = pl.concat([pl.Series("line", [], dtype=pl.String), *(lines_of(path, compared.ledger) for path in sums)])
    rows = lines.to_frame().select(pl.col("line").str.extract_groups(_SUM).alias("at")).unnest("at")
    rows = rows.filter(pl.col("stage").is_null() | (pl.col("name") != _OUTSIDE)).select(
        pl.col("ns", "count").cast(pl.Int64, strict=False)
    )
    same = {path.name.replace("Summary", "Detail") for path in sums} == {path.name for path in details}
    if same and not compared.ledger.ends_early and (stated := rows.drop_nulls()).height:
        compared.times("events of the host", int(stated["ns"].sum()), int(events["dur"].sum()))
        compared.counts("events of the host", int(stated["count"].sum()), events.height)
    return compared


def dispatches(events: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return when work was asked for (``ts``), and when it had been computed (``end``), in ns.

    Runs of graphs are computed in the order in which they are asked for, and the recording ends when the last one is
    computed: so the last run belongs to the last call. An operator outside graphs has the time of its call.

    Args:
        events: What :func:`read` returned.
        operators: Columns ts, dur and call_ts, which is null where the call is unknown.
    """
    asked = events.filter(pl.col("name") == _ASKED)["ts"].sort()
    waits = events.filter((pl.col("name") == _COMPUTED) & pl.col("op").str.ends_with(_LAST))
    computed = (waits["ts"] + waits["dur"]).sort()
    known = min(len(asked), len(computed))
    runs = pl.DataFrame({"ts": asked.tail(known), "end": computed.tail(known)})
    called = operators.drop_nulls("call_ts").select(ts="call_ts", end=pl.col("ts") + pl.col("dur"))
    return pl.concat([runs, called])


def _first_named(*columns: str) -> pl.Expr:
    """Return the first of the columns that holds a name."""
    named = [pl.when((pl.col(name) != _NAMELESS) & (pl.col(name) != "")).then(pl.col(name)) for name in columns]
    return pl.coalesce(*named, pl.col(columns[-1]))
