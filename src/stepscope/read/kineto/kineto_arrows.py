"""Flow events of a Kineto trace → arrows from a track and time to a track and time."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.read.chrome_json.event_schema import ABSENT, BAD, Class
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE, LARGEST_TIME, Mask
from stepscope.read.kineto.kineto_facts import KinetoFacts
from stepscope.read.kineto.kineto_spans import KinetoSpans, one_of, rows_of
from stepscope.trace.losses import LossLedger

_KIND_OF_CATEGORY = {"fwdbwd": "forward_backward", "ac2g": "launch", "async_cpu_to_gpu": "launch", "async": "launch"}
_NONE = pl.DataFrame(
    schema={"kind": pl.String, "from_track": pl.Int32, "from_ts": pl.Int64, "to_track": pl.Int32, "to_ts": pl.Int64}
)
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel")


def arrows(spans: KinetoSpans, facts: KinetoFacts, ledger: LossLedger) -> pl.DataFrame:
    """Return arrows: columns ``kind``, ``from_track``, ``from_ts``, ``to_track``, ``to_ts``.

    Launches are left out if every device event has a correlation number, which says the same and more.
    """
    base = spans.events.base
    usable = (base["phase"] == ord("s")) | (base["phase"] == ord("f"))
    usable &= (base["ts"] > BAD) & (np.abs(base["ts"]) < LARGEST_TIME) & (base["id"] != ABSENT)
    device_work, _ = rows_of(spans, Class.DEVICE, ("kernel", "memcpy", "memset", "collective"))
    if not (device_work["correlation"] == ABSENT).any():
        launches = [name for name, kind in _KIND_OF_CATEGORY.items() if kind == "launch"]
        usable &= ~one_of(spans.events, base["category"], launches)
    between_ranges = _to_ranges(spans).vstack(_to_waits(spans))
    if not usable.any():
        return between_ranges
    places = _places(spans, np.flatnonzero(usable), facts)
    starts = places.filter("start").unique(["category", "id"], keep="first", maintain_order=True).drop("start")
    ends = places.filter(~pl.col("start")).drop("start")
    drawn = ends.join(starts, on=["category", "id"], how="left", suffix="_from", maintain_order="left")
    whole = drawn.filter((pl.col("track") >= 0) & (pl.col("track_from") >= 0))
    lost = drawn.filter(pl.col("track_from").is_null() & (pl.col("kind") != "launch")).height
    unended = starts.filter(pl.col("kind") != "launch").join(ends, on=["category", "id"], how="anti").height
    ledger.add("flow_dangling", lost + unended)
    between_events = whole.select("kind", from_track="track_from", from_ts="ts_from", to_track="track", to_ts="ts")
    return pl.concat([between_events, between_ranges])


def _to_ranges(spans: KinetoSpans) -> pl.DataFrame:
    """Return arrows from launches to CUPTI's ranges, which have no number in common and times that mean nothing.

    The profiler measures kernel after kernel: with one range per launch, the n-th range belongs to the n-th launch.
    """
    ranges = _ordered(spans, spans.named("category", "cuda_profiler_range"))
    if not len(ranges):
        return _NONE
    calls = (spans.kind == KIND_CODE["runtime"]) | (spans.kind == KIND_CODE["driver"])
    launches = _ordered(spans, calls & spans.named("name", *_LAUNCHES))
    if len(ranges) != len(launches):
        ranges = launches = ranges[:0]
    places = {"from_track": spans.track[launches], "from_ts": spans.ts[launches]}
    places |= {"to_track": spans.track[ranges], "to_ts": spans.ts[ranges]}
    kind = pl.Series("kind", ["launch"]).new_from_index(0, len(ranges))
    return pl.DataFrame({"kind": kind, **places})


def _to_waits(spans: KinetoSpans) -> pl.DataFrame:
    """Return arrows to waits for events, from the last work that was launched on the event's stream before it."""
    waits, wait_ids = rows_of(spans, Class.DEVICE, ("sync",))
    marked = np.flatnonzero(waits["awaited_record"] >= 0)
    if not len(marked):
        return _NONE
    work, work_ids = rows_of(spans, Class.DEVICE, ("kernel", "memcpy", "memset", "collective"))
    calls, call_ids = rows_of(spans, Class.RUNTIME, ("runtime", "driver"))
    called = pl.DataFrame({"correlation": calls["correlation"], "at": spans.ts[call_ids]}).unique("correlation")
    places = ("device", "stream", "correlation")
    launched = pl.DataFrame({**{name: work[name] for name in places}, "work": work_ids}).join(called, on="correlation")
    asked = {"device": waits["device"], "stream": waits["awaited_stream"], "correlation": waits["awaited_record"]}
    events = pl.DataFrame({**asked, "wait": wait_ids})[marked].join(called, on="correlation")
    found = (
        events.sort("at")
        .join_asof(launched.sort("at"), on="at", by=["device", "stream"], check_sortedness=False)
        .drop_nulls("work")
    )
    begin, end = found["work"].to_numpy(), found["wait"].to_numpy()
    kind = pl.Series("kind", ["wait"]).new_from_index(0, len(begin))
    ends = {"from_track": spans.track[begin], "from_ts": spans.ts[begin]}
    return pl.DataFrame({"kind": kind, **ends, "to_track": spans.track[end], "to_ts": spans.ts[end]})


def _ordered(spans: KinetoSpans, chosen: Mask) -> Integers:
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(spans.ts[rows], kind="stable")]


def _places(spans: KinetoSpans, rows: Integers, facts: KinetoFacts) -> pl.DataFrame:
    base = spans.events.base
    category = spans.texts(base["category"][rows]).cast(pl.String)
    return pl.DataFrame(
        {
            "category": base["category"][rows],
            "kind": category.replace_strict(_KIND_OF_CATEGORY, default="other", return_dtype=pl.String),
            "id": base["id"][rows],
            "track": spans.tracks.of_flows(rows),
            "ts": base["ts"][rows] + facts.base_ns,
            "start": base["phase"][rows] == ord("s"),
        }
    )
