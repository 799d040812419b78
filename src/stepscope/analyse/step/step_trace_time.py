"""Where each step goes: computing, communication, copies, waits and idle time. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analyse.intervals import EMPTY, Intervals, Times, union
from stepscope.analyse.step import activity as working
from stepscope.analyse.step import sample
from stepscope.analyse.step.activity import Windows, Work
from stepscope.analyse.step.device_waits import idle_waits
from stepscope.analyse.units import timestamps_us
from stepscope.trace.tables import Tables, has_rows, of_arrays, shared

#: The disjoint parts of a step in order of priority: time covered by several belongs to the first.
PARTS: tuple[str, ...] = ("computing", "communication", "copy", "data wait", "sync", "host only", "idle")

#: Column of the result → the parts that it is made of.
_MADE_OF: dict[str, tuple[str, ...]] = {
    **{"Computing": PARTS[:1], "Communication": PARTS[1:2], "Stage": PARTS[1:2], "Bubble": PARTS[1:2]},
    **dict.fromkeys(("Communication(Not Overlapped)", "Overlapped", "Free"), PARTS[:2]),
    "Communication(Not Overlapped and Exclude Receive)": PARTS[:2],
    "Preparing": PARTS[:3],
    **{"Copy(Not Overlapped)": PARTS[:3], "Data Wait": PARTS[:4], "Sync": PARTS[:5], "Host Only": PARTS[:6]},
    "Idle": PARTS,
}
#: Columns that are not known from a sample of the operators; on a rank without a device, whose work they are, none is.
_OF_THE_HOST = ("Sync", "Host Only", "Idle")


@dataclass(frozen=True, eq=False)
class Split:
    """Every step's time, split into disjoint parts.

    Attributes:
        work: What the rank was doing.
        windows: The steps.
        parts: Per name of :data:`PARTS`, time in ns of each step; the parts of a step add up to it exactly.
        layers: Per name of :data:`PARTS` but idle, when it is active; time in several belongs to the first.
        unknown: Names of the parts that the source did not record, and of those that depend on them.
    """

    work: Work
    windows: Windows
    parts: dict[str, Times]
    layers: dict[str, Intervals]
    unknown: frozenset[str] = frozenset()


@shared
def split(tables: Tables) -> Split:
    """Split every step, or the whole range without steps, into :data:`PARTS`."""
    spans = working.located(tables)
    windows, work = working.windows(tables, spans), working.work(tables, spans)
    waits = idle_waits(tables, spans) if work.on_device else EMPTY
    active = (work.computing, work.communication, work.copying, work.data, waits, work.host)
    layers = dict(zip(PARTS, active, strict=False))
    covered, before, parts = EMPTY, np.zeros(len(windows.start), np.int64), {}
    for name, layer in layers.items():
        covered = union(covered, layer)
        now = covered.within(windows.start, windows.end)
        parts[name] = now - before
        before = now
    parts["idle"] = windows.end - windows.start - before
    # Time that a part before it covers does not count for a part, so that one is known only with all before it.
    missing = working.not_recorded(tables)
    first = min((PARTS.index(name) for name in missing), default=len(PARTS))
    return Split(work, windows, parts, layers, frozenset(PARTS[first:]))


def step_trace_time(tables: Tables) -> pl.DataFrame:
    """Return one row per step, in µs: its start and total, the standard columns, then the parts that Free consists of.

    A trace without steps gives one row, step 0, over its whole range. What a sample of the operators does not show is
    null, and so are the columns of pipelines over many devices on a rank of which they say nothing.
    """
    result = split(tables)
    parts, windows, work = result.parts, result.windows, result.work
    communication = work.communication.within(windows.start, windows.end)
    bubble = work.receiving.within(windows.start, windows.end)
    exposed = parts["communication"]
    columns = {
        "Computing": parts["computing"],
        "Communication(Not Overlapped)": exposed,
        "Overlapped": communication - exposed,
        "Communication": communication,
        "Free": windows.end - windows.start - parts["computing"] - exposed,
        "Stage": _stage(work.communication, windows) - bubble,
        "Bubble": bubble,
        "Communication(Not Overlapped and Exclude Receive)": _exposed_without(work, windows),
        "Preparing": _preparing(work, windows),
        "Copy(Not Overlapped)": parts["copy"],
        "Data Wait": parts["data wait"],
        "Sync": parts["sync"],
        "Host Only": parts["host only"],
        "Idle": parts["idle"],
    }
    unknown = [*_meaningless(tables, work), *unknown_columns(tables, work, columns)]
    nothing = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(windows.start))
    times = {"Total": windows.end - windows.start, **columns}
    shown = of_arrays({
        "Step": windows.number, "Start Time(us)": timestamps_us(windows.start),
        **{name: nothing if name in unknown else time / 1000 for name, time in times.items()},
    })  # fmt: skip
    if working.not_recorded(tables):
        shown = _with_stated(shown, working.stated(tables, "step_trace_time"), windows)
    return shown


def unknown_columns(
    tables: Tables, work: Work, columns: Collection[str], *, without: frozenset[str] = frozenset()
) -> list[str]:
    """Return the columns that a sample of the operators, or a source that did not record a part, does not tell.

    Args:
        tables: Tables of the rank.
        work: What the rank was doing.
        columns: Standard columns.
        without: Parts that do not count in the caller's arithmetic.
    """
    sampled = () if sample.fraction(tables) == 1 else _OF_THE_HOST if work.on_device else columns
    missing = working.not_recorded(tables) - without
    return [*sampled, *(name for name in columns if missing.intersection(_MADE_OF[name]))]


def _meaningless(tables: Tables, work: Work) -> list[str]:
    """Return the columns that say nothing of a rank: of communication, of pipelines, of a device it does not have.

    Ascend's profilers fill all of them, so that a capture of theirs has them.
    """
    if has_rows(tables, "tasks") or working.stated(tables, "step_trace_time"):
        return []
    names = [] if work.on_device else ["Preparing"]
    names += [] if len(work.communication) else ["Stage"]
    pipelined = ("Bubble", "Communication(Not Overlapped and Exclude Receive)")
    return names + ([] if len(work.receiving) else list(pipelined))


def _with_stated(shown: pl.DataFrame, stated: list[dict[str, float | None]], windows: Windows) -> pl.DataFrame:
    """Return the steps with what the source states of them in place of what the tables cannot give."""
    if not stated:
        return shown
    said = pl.DataFrame(stated, infer_schema_length=None).cast(pl.Float64)
    said = said.with_columns(pl.col("Step").fill_null(0).cast(shown.schema["Step"])).unique("Step", maintain_order=True)
    own = shown if windows.declared else shown.clear()
    joined = own.join(said, on="Step", how="full", coalesce=True, suffix=" stated", maintain_order="left_right")
    known = [name for name in said.columns if name != "Step"]
    return joined.select(
        pl.coalesce(name, f"{name} stated") if name in known else pl.col(name) for name in shown.columns
    ).sort("Step")


def _stage(communication: Intervals, windows: Windows) -> Times:
    """Return the time from the first to the last communication inside each window; 0 without communication."""
    first = communication.first_from(windows.start)
    last = communication.last_until(windows.end)
    some = communication.within(windows.start, windows.end) > 0
    return np.where(some, last - np.where(some, first, last), 0)


def _exposed_without(work: Work, windows: Windows) -> Times:
    """Return the time of communication other than receiving that nothing else hides."""
    hidden = union(work.computing, work.receiving)
    everything = union(hidden, work.communication)
    return everything.within(windows.start, windows.end) - hidden.within(windows.start, windows.end)


def _preparing(work: Work, windows: Windows) -> Times:
    """Return the time from the start of each window to its first work; the whole window without work."""
    busy = union(work.computing, work.communication, work.copying)
    return np.minimum(busy.first_from(windows.start), windows.end) - windows.start
