"""The results of a job: what the files in ``cluster/`` hold. Definitions: ``docs/definitions.md``, “Many ranks”."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyse.step.activity import IS_POINT_TO_POINT
from stepscope.analyse.units import timestamp_us, us
from stepscope.cluster.clocks import to_job_time
from stepscope.cluster.job_tables import Frame, JobTables
from stepscope.cluster.slow_links import communication_by_operation
from stepscope.cluster.what_if.job_what_if import WHAT_IF_SCHEMA

if TYPE_CHECKING:
    from stepscope.cluster.job import Job

#: Columns of ``clocks.csv``.
CLOCKS = ("rank", "host", "offset_ns", "drift_ppm", "uncertainty_ns", "anchor", "reason")
#: Kinds of groups in which ``cluster_ranks.csv`` gives a rank's place.
GROUP_KINDS = ("dp", "tp", "pp", "ep", "cp")
#: Columns of ``cluster_step_trace_time.csv`` from columns of the job's steps; the first nine are msprof-analyze's.
_PARTS = {
    "Computing": pl.col("computing"),
    "Communication(Not Overlapped)": pl.col("communication"),
    "Overlapped": pl.col("overlapped"),
    "Communication": pl.col("communication") + pl.col("overlapped"),
    "Free": pl.col("dur") - pl.col("computing") - pl.col("communication"),
    "Stage": pl.col("stage_time"),
    "Bubble": pl.col("bubble"),
    "Communication(Not Overlapped and Exclude Receive)": pl.col("communication") - pl.col("receiving"),
    "Preparing": pl.col("preparing"),
    "Copy(Not Overlapped)": pl.col("copy"),
    "Data Wait": pl.col("data_wait"),
    "Sync": pl.col("sync"),
    "Host Only": pl.col("host_only"),
    "Idle": pl.col("idle"),
}


@dataclass(frozen=True)
class JobResult:
    """One question about a job.

    Attributes:
        name: Name of the result and stem of its file.
        function: The pure function that computes it.
        doc: What one row is.
    """

    name: str
    function: Callable[[Job], Frame]
    doc: str


def clocks(job: Job) -> Frame:
    """Return one row a rank: what to add to its times to get those of the job, and how well that is known."""
    return job.clocks.select(CLOCKS)


def cluster_step_trace_time(job: Job) -> Frame:
    """Return one row a step and rank, and one a step and stage with the longest of its ranks, in µs.

    ``Type`` is ``rank`` or, of a job with a pipeline, ``stage``; ``Index`` is the rank, or the ranks of the stage as
    msprof-analyze writes them. ``Start Time(us)`` is by the job's clock.
    """
    steps = to_job_time(_with_stage_time(job.tables), job.clocks, "ts").join(job.stages, on="rank", how="left")
    values = [pl.col("dur").alias("Total"), *(part.alias(title) for title, part in _PARTS.items())]
    of_ranks = steps.select("step", "rank", "stage", "ts", *values)
    of_stages = (
        of_ranks.drop_nulls("stage")
        .group_by("step", "stage")
        .agg(pl.col("ts").min(), pl.col("rank").unique().sort().alias("ranks"), pl.col("Total", *_PARTS).max())
    )
    tuples = pl.format("({})", pl.col("ranks").cast(pl.List(pl.String)).list.join(", "))
    rows = [
        of_ranks.with_columns(pl.lit("rank").alias("Type"), pl.col("rank").cast(pl.String).alias("Index")),
        of_stages.with_columns(pl.lit("stage").alias("Type"), tuples.alias("Index"), pl.lit(None).alias("rank")),
    ]
    shown = pl.concat(rows, how="diagonal_relaxed").sort("Type", "step", "stage", "rank")
    order = ("Type", "Index", timestamp_us("ts").alias("Start Time(us)"), us("Total"))
    return shown.select(pl.col("step").alias("Step"), *order, *(us(title) for title in _PARTS))


def cluster_communication(job: Job) -> Frame:
    """Return one row a collective: its group and size, when its ranks arrived, and how long each waited.

    Times are by the job's clock, in ns; ``wait_ns`` and ``transit_ns`` have one value for each of ``ranks``, in that
    order. What is not known is null, and ``reason`` says why.
    """
    arrivals = job.arrivals.drop_nulls("meeting").sort("meeting", "rank")
    known = pl.col("arrival").is_not_null().all()
    last = pl.when(pl.col("last").any()).then(pl.col("rank").filter(pl.col("last").fill_null(value=False)).first())
    rows = arrivals.group_by("meeting", maintain_order=True).agg(
        pl.col("step", "group", "operation").first(),
        pl.col("bytes").max(),
        pl.col("rank").alias("ranks"),
        pl.when(known).then(pl.col("arrival").min()).alias("first_arrival_ns"),
        pl.when(known).then(pl.col("arrival").max()).alias("last_arrival_ns"),
        pl.when(known).then(pl.col("end").max()).alias("end_ns"),
        last.alias("last_rank"),
        pl.col("wait").alias("wait_ns"),
        pl.col("transit").alias("transit_ns"),
        pl.col("uncertainty").max().alias("uncertainty_ns"),
        pl.col("reason").drop_nulls().first(),
    )
    names = job.tables.groups.select(pl.col("id").alias("group"), pl.col("name").alias("group_name"))
    complete = job.meetings.group_by("meeting").agg(pl.col("complete").first())
    joined = rows.join(names, on="group", how="left").join(complete, on="meeting", how="left")
    first = ("meeting", "step", "group", "group_name", "operation", "bytes", "ranks", "complete")
    return joined.select(*first, pl.exclude(*first)).sort("first_arrival_ns", "meeting", nulls_last=True)


def cluster_communication_matrix(job: Job) -> Frame:
    """Return one row a link and operation: what went over it, how long that took, and how fast it was.

    The links of point-to-point communication have a source and a destination; of a collective no source records the
    links that it used, so that its row is that of a rank with its group. The time of an operation is its transit where
    the clocks or the source tell it from the waiting; else ``transit_ns`` and ``bandwidth_gb_s`` are null.
    """
    transit = job.arrivals.select("meeting", "rank", pl.col("transit").alias("measured"))
    pair = IS_POINT_TO_POINT & pl.col("source").is_not_null() & pl.col("destination").is_not_null()
    receives = (pair & (pl.col("destination") == pl.col("rank"))).any().over("meeting")
    rows = job.meetings.join(transit, on=("meeting", "rank"), how="left").with_columns(pair=pair)
    # Both sides of a pair record the same bytes. Those of the receiver count: its wait for the sender is known.
    rows = rows.filter(~pl.col("pair") | ~receives | (pl.col("destination") == pl.col("rank")))
    links = rows.select(
        "group",
        "operation",
        pl.when("pair").then("source").otherwise("rank").alias("src_rank"),
        pl.when("pair").then("destination").alias("dst_rank"),
        pl.when(pl.col("bytes_in") > 0).then("bytes_in").otherwise("bytes_out").alias("bytes"),
        pl.coalesce("transit", "measured").alias("moving"),
    )
    keys = ("group", "operation", "src_rank", "dst_rank")
    seen = pl.col("bytes").is_not_null() & (pl.col("moving") > 0)
    found = links.group_by(keys).agg(
        pl.len().alias("count"),
        pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum()).alias("bytes"),
        pl.when(pl.col("moving").is_not_null().any()).then(pl.col("moving").sum()).alias("transit_ns"),
        pl.when(seen.any())
        .then(pl.col("bytes").filter(seen).sum() / pl.col("moving").filter(seen).sum())
        .alias("bandwidth_gb_s"),
    )
    transport = job.tables.groups.select(pl.col("id").alias("group"), pl.col("name").alias("group_name"), "transport")
    shown = found.join(transport, on="group", how="left")
    first = ("group", "group_name", "operation", "src_rank", "dst_rank", "transport")
    return shown.select(*first, pl.exclude(*first)).sort("operation", "group", "src_rank", "dst_rank", nulls_last=True)


def cluster_ranks(job: Job) -> Frame:
    """Return one row a rank, also of ranks that cannot be read: its steps, its waiting, and its speed.

    ``rank`` is null for a capture that cannot be read and whose name does not say the rank.
    ``own_ns`` is the median of its steps without exposed communication: what the rank itself takes. ``speed`` is the
    median over its steps of the lower median of its stage's own times, divided by its own: 0.8 is a quarter slower.
    The duration, and what follows from it, are null for steps that :func:`comparable_steps` leaves out.
    """
    compared = pl.col("rank").is_in(comparable_steps(job.tables)["rank"].unique().implode())
    steps = job.tables.steps.join(job.stages, on="rank", how="left")
    steps = steps.with_columns(dur=pl.when(compared).then("dur"))
    steps = steps.with_columns(own=pl.col("dur") - pl.col("communication"))
    steps = steps.with_columns(speed=pl.col("own").quantile(0.5, "lower").over("step", "stage") / pl.col("own"))
    of_steps = (
        steps.join(waits_of_steps(job.arrivals), on=("rank", "step"), how="left")
        .group_by("rank")
        .agg(
            pl.len().alias("steps"),
            pl.col("dur").median().alias("step_ns"),
            pl.col("own").median().alias("own_ns"),
            pl.col("communication").median().alias("exposed_ns"),
            pl.col("wait").median().alias("wait_ns"),
            pl.col("speed").median(),
        )
    )
    next_one = pl.col("arrival").bottom_k(2).max().over("meeting")
    first = next_one - pl.col("arrival") > pl.col("uncertainty")
    known = pl.col("last").is_not_null().any().over("meeting")
    of_meetings = (
        job.arrivals.with_columns(first=first, known=known)
        .group_by("rank")
        .agg(
            pl.col("known").sum().alias("meetings"),
            (pl.col("last") & pl.col("known")).sum().alias("times_last"),
            (pl.col("first") & pl.col("known")).sum().alias("times_first"),
            pl.col("lateness").median().alias("lateness_ns"),
        )
    )
    ranks = job.tables.ranks.select("rank", "directory", "host", "device", "device_name", "fault")
    rows = ranks.join(_places(job.groups), on="rank", how="left").join(job.stages, on="rank", how="left")
    for frame in (of_steps, of_meetings):
        rows = rows.join(frame, on="rank", how="left")
    numbered = pl.when(pl.col("rank") >= 0).then("rank")
    rows = rows.with_columns(numbered.alias("rank"), pl.col("^.*_ns$").round().cast(pl.Int64))
    return rows.select(pl.exclude("fault"), "fault").sort("rank")


def comparable_steps(tables: JobTables) -> Frame:
    """Return the steps whose durations may be compared: without inferred ones, where other ranks have marks.

    A step that lasts from its first to its last work lacks what the host does before and after it.
    """
    inferred = tables.ranks.filter("inferred")
    marked = tables.steps.join(inferred, on="rank", how="anti")
    return marked if marked.height else tables.steps


def _places(groups: Frame) -> Frame:
    """Return the place of each rank in its group of each kind; null where it is in several groups of a kind."""
    places = (
        groups.filter(pl.col("kind") != "unknown")
        .group_by("rank", "kind")
        .agg(pl.when(pl.len() == 1).then(pl.col("place").first()))
    )
    wide = places.pivot("kind", index="rank", values="place")
    none = pl.lit(None, dtype=pl.Int64)
    return wide.select("rank", *(pl.col(kind) if kind in wide.columns else none.alias(kind) for kind in GROUP_KINDS))


def waits_of_steps(arrivals: Frame) -> Frame:
    """Return how long each rank waits for others, and moves data, in each step: rank, step, wait, transit (ns).

    Collectives that wait at one time count once. Null where nothing is known of any collective of the step.
    """
    known = arrivals.filter(pl.col("wait").is_not_null() & pl.col("step").is_not_null())
    met = pl.col("arrival") + pl.col("wait")
    parts = known.select("rank", "step", "arrival", met.alias("met"), (met + pl.col("transit")).alias("end"))
    by = ("rank", "step")
    waits = parts.select(*by, _after_the_others("arrival", "met", *by).alias("wait"))
    moves = parts.select(*by, _after_the_others("met", "end", *by).alias("transit"))
    return waits.group_by(by).agg(pl.col("wait").sum()).join(moves.group_by(by).agg(pl.col("transit").sum()), on=by)


def _after_the_others(start: str, end: str, *over: str) -> pl.Expr:
    """Return what of each interval lies after all that start before it: their sum is the length of the union."""
    before = pl.col(end).cum_max().shift(1).over(over, order_by=start)
    return (pl.col(end) - pl.max_horizontal(start, before)).clip(lower_bound=0)


def _with_stage_time(tables: JobTables) -> Frame:
    """Return the steps with the time from first to last communication, and of receiving, inside each."""
    window = tables.steps.select("rank", "step", begin="ts", until=pl.col("ts") + pl.col("dur"))
    spans = tables.collectives.filter(pl.col("launched").fill_null(value=True)).join(window, on=("rank", "step"))
    spans = spans.with_columns(
        start=pl.max_horizontal("ts", "begin"),
        end=pl.min_horizontal(pl.col("ts") + pl.col("dur"), "until"),
        pair=IS_POINT_TO_POINT,
    )
    new = _after_the_others("start", "end", "rank", "step", "pair")
    found = (
        spans.with_columns(new=new)
        .group_by("rank", "step")
        .agg(
            (pl.col("end").max() - pl.col("start").min()).alias("range"),
            pl.col("new").filter("pair").sum().alias("bubble"),
            pl.col("exposed").filter("pair").sum().alias("receiving"),
        )
    )
    found = found.with_columns((pl.col("range") - pl.col("bubble")).alias("stage_time"))
    steps = tables.steps.join(found, on=("rank", "step"), how="left", maintain_order="left")
    # Without communication nothing is received; where communication is not known, neither is that.
    known, received = pl.col("communication").is_not_null(), pl.col("bubble", "receiving").fill_null(0)
    return steps.with_columns(pl.when(known).then(received), pl.when(known).then("stage_time").alias("stage_time"))


def cluster_links(job: Job) -> Frame:
    """Return one row a pair of ranks, or a group where no pair can be told: its speed, and that of its peers."""
    return job.links


def cluster_collectives(job: Job) -> Frame:
    """Return one row for each kind of collective: number, size, and the time that no computing overlaps."""
    return communication_by_operation(job.meetings, job.groups, job.arrivals)


def cluster_pipeline(job: Job) -> Frame:
    """Return one row a stage of a pipeline: what its ranks compute, and how long they wait for other stages."""
    return job.pipeline


def cluster_what_if(job: Job) -> Frame:
    """Return what the job would save without each straggler; no rows where nobody can say who waited for whom."""
    return job.what_if.table if job.what_if else pl.DataFrame(schema=WHAT_IF_SCHEMA)


def cluster_critical_path(job: Job) -> Frame:
    """Return one row a piece of the path through the ranks that decides how long each step takes."""
    return job.critical_path


_ALL = (
    JobResult("clocks", clocks, "a rank: what to add to its times, and how well that is known"),
    JobResult("cluster_step_trace_time", cluster_step_trace_time, "a step of a rank, or of a stage"),
    JobResult("cluster_communication", cluster_communication, "a collective: when its ranks arrived, who waited"),
    JobResult("cluster_communication_matrix", cluster_communication_matrix, "a link between ranks and an operation"),
    JobResult("cluster_ranks", cluster_ranks, "a rank: its steps, its waiting, its speed against its peers"),
    JobResult("cluster_links", cluster_links, "a link between ranks, against the others of its sort"),
    JobResult(
        "cluster_collectives",
        cluster_collectives,
        "a kind of collective: size, waiting, exposed time",
    ),
    JobResult("cluster_pipeline", cluster_pipeline, "a stage of a pipeline: its work and its bubble"),
    JobResult("cluster_what_if", cluster_what_if, "a rank, stage, step or operation: what it costs the job"),
    JobResult("cluster_critical_path", cluster_critical_path, "a piece of what decides how long a step takes"),
)
JOB_RESULTS: dict[str, JobResult] = {result.name: result for result in _ALL}


class JobResults(Mapping[str, Frame]):
    """The results of a job by name; each is computed once, when it is first read.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._computed: dict[str, Frame] = {}

    def __getitem__(self, name: str) -> Frame:
        if name not in self._computed:
            self._computed[name] = JOB_RESULTS[name].function(self._job)
        return self._computed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(JOB_RESULTS)

    def __len__(self) -> int:
        return len(JOB_RESULTS)
