"""The summary of a job: the few numbers that one screen shows, at any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analyse.step.summary import StepPart
from stepscope.cluster.job_results import comparable_steps, waits_of_steps
from stepscope.cluster.job_tables import Frame, JobTables

if TYPE_CHECKING:
    from stepscope.cluster.job import Job

#: Columns of the job's steps with their parts and phases, in the order in which they are shown.
_PARTS = ("computing", "communication", "copy", "data_wait", "sync", "host_only", "idle")
_PHASES = (
    "data", "forward", "backward", "optimizer", "communication_phase", "evaluation", "checkpoint", "other",
)  # fmt: skip
#: Operators that the summary keeps; the screen shows as many of them as there is room for.
_KEPT = 5
#: Bars of a histogram over ranks.
_BARS = 12
#: Severities of losses, the worst first.
_WORST = {"error": 0, "data_loss": 1, "info": 2}


@dataclass(frozen=True)
class OverRanks:
    """How a number is distributed over ranks.

    Attributes:
        ranks: Ranks of which it is known.
        lowest: The lowest.
        quarter: The first quartile.
        median: The median.
        three_quarters: The third quartile.
        highest: The highest.
        counts: Ranks in each of equally wide bins from the lowest to the highest.
    """

    ranks: int
    lowest: float
    quarter: float
    median: float
    three_quarters: float
    highest: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class RankNumbers:
    """What the screen says of one rank, as in ``cluster_ranks``; None is unknown."""

    rank: int
    host: str | None
    steps: int | None
    step_ns: float | None
    own_ns: float | None
    wait_ns: float | None
    times_last: int | None
    meetings: int | None
    speed: float | None


@dataclass(frozen=True)
class PartOverRanks:
    """A part or phase of the mean step, and the lowest and highest mean of a rank, ns."""

    part: StepPart
    lowest_ns: float
    highest_ns: float


@dataclass(frozen=True)
class OperatorOverRanks:
    """An operator or kernel among those with most time, over the ranks of which it is known.

    Attributes:
        name: Its name.
        count: Calls a step of the mean rank.
        median_ns: Its time in the mean step of the median rank.
        lowest_ns: That of the rank with least.
        highest_ns: That of the rank with most.
        highest_rank: The rank with most.
        share: Fraction of the time of all operators, or of all kernels.
    """

    name: str
    count: float
    median_ns: float
    lowest_ns: float
    highest_ns: float
    highest_rank: int
    share: float


@dataclass(frozen=True)
class JobCommunication:
    """Communication in the mean step of the mean rank, ns; None where it is not known.

    Attributes:
        exposed_ns: While nothing computes.
        overlapped_ns: While something computes.
        wait_ns: Waiting for the last rank of each collective, in the median rank.
        transit_ns: From the arrival of the last rank to the end, in the median rank.
        count: Collectives, and pairs of point-to-point communication, a step.
    """

    exposed_ns: float | None
    overlapped_ns: float | None
    wait_ns: float | None
    transit_ns: float | None
    count: float


@dataclass(frozen=True)
class JobPipeline:
    """The stages of a pipeline: how many, what they compute in a step (ns), and the share of it that is bubbles.

    Bubbles, in which a stage waits for another one, are None where they are not known.
    """

    stages: int
    shortest_ns: int
    longest_ns: int
    least_bubble: float | None
    most_bubble: float | None


@dataclass(frozen=True)
class JobClocks:
    """Whose clocks are aligned: how many, the largest uncertainty, and the ranks that are not, by reason."""

    aligned: int
    uncertainty_ns: float | None
    unknown: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class LossOverRanks:
    """Something that ranks dropped, cut or repaired: its name, how often, how severe, and on which ranks."""

    what: str
    count: int
    severity: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class UnlikeSteps:
    """A rank whose recorded steps are unlike the others of its run: their median in ns; number and median of those."""

    rank: int
    recorded_ns: float
    others: int
    others_ns: float


@dataclass(frozen=True)
class JobSummary:
    """What the screen of a job shows.

    Attributes:
        frameworks: Module and version of each framework: ``("torch", "2.13.0")``.
        devices: What each device is, if all ranks say, else its kind, and the number of ranks that it works for.
        hosts: Number of machines; None if some rank does not say.
        world_size: Ranks that the job has, as they say; None if they do not, or contradict.
        ranks: The ranks, ascending; one that cannot be read has no numbers.
        steps: Distinct numbers of steps.
        step_ns: Median duration over all steps and ranks that may be compared; None without steps.
        unlike: The ranks whose recorded steps are not typical of their run, the most unlike first.
        split: Parts of the mean step, over the ranks of which the same parts are known.
        not_recorded: Parts that these ranks did not record.
        split_ranks: Number of these ranks.
        phases: Phases of the mean step, likewise.
        communication: Communication in the mean step; None if none is recorded.
        pipeline: Its stages; None if it has none.
        on_device: Whether ``operators`` are kernels.
        operators: Those with most time.
        clocks: Whose clocks are aligned.
        losses: What was lost, most severe first.
        checked: Ranks whose captures state totals that were compared with what was read.
        imported: Ranks that another tool recorded.
        unreadable: Directories of ranks that cannot be read, each with the reason.
    """

    frameworks: tuple[tuple[str, str], ...]
    devices: tuple[tuple[str, int], ...]
    hosts: int | None
    world_size: int | None
    ranks: tuple[RankNumbers, ...]
    steps: int
    step_ns: float | None
    unlike: tuple[UnlikeSteps, ...]
    split: tuple[PartOverRanks, ...]
    not_recorded: tuple[str, ...]
    split_ranks: int
    phases: tuple[PartOverRanks, ...]
    communication: JobCommunication | None
    pipeline: JobPipeline | None
    on_device: bool
    operators: tuple[OperatorOverRanks, ...]
    clocks: JobClocks
    losses: tuple[LossOverRanks, ...]
    checked: int
    imported: int
    unreadable: tuple[tuple[str, str], ...]


def job_summary(job: Job) -> JobSummary:
    """Compute the summary of a job from its tables and results."""
    ranks, steps = job.tables.ranks.filter(pl.col("fault").is_null()), job.tables.steps
    sizes = ranks["world_size"].drop_nulls().unique()
    named = job.results["cluster_ranks"].select(*RankNumbers.__annotations__).drop_nulls("rank")
    frameworks = ranks.drop_nulls("framework").select("framework", pl.col("version").fill_null("")).unique()
    kind = pl.col("device").str.replace(r":\d+$", "")
    device = kind if ranks["device_name"].null_count() else pl.col("device_name")
    devices = ranks.group_by(device.alias("device")).len().drop_nulls().sort("len", "device", descending=(True, False))
    parts, unknown = _known_parts(steps)
    on_device, operators = _operators(job.tables)
    return JobSummary(
        frameworks=tuple(frameworks.sort("framework", "version").iter_rows()),
        devices=tuple(devices.iter_rows()),
        hosts=None if ranks["host"].null_count() else ranks["host"].n_unique(),
        world_size=int(sizes[0]) if len(sizes) == 1 else None,
        ranks=tuple(RankNumbers(**row) for row in named.iter_rows(named=True)),
        steps=steps["step"].n_unique(),
        step_ns=_number(comparable_steps(job.tables)["dur"].median()),
        unlike=_unlike(ranks, steps),
        split=_over_ranks(parts, [name for name in _PARTS if name not in unknown]),
        not_recorded=tuple(name.replace("_", " ") for name in unknown),
        split_ranks=parts["rank"].n_unique(),
        phases=_over_ranks(steps.drop_nulls(_PHASES), _PHASES),
        communication=_communication(job),
        pipeline=_pipeline(job.pipeline),
        on_device=on_device,
        operators=operators,
        clocks=_clocks(job.clocks),
        losses=_losses(job.tables.losses),
        checked=int(ranks["checked"].sum()),
        imported=int(ranks["imported"].sum()),
        unreadable=tuple(job.tables.ranks.drop_nulls("fault").select("directory", "fault").iter_rows()),
    )


def _pipeline(stages: Frame) -> JobPipeline | None:
    if stages.is_empty():
        return None
    work, bubble = stages["work_ns"], stages["bubble"]
    return JobPipeline(len(stages), work.min(), work.max(), bubble.min(), bubble.max())  # type: ignore[arg-type]


def _unlike(ranks: Frame, steps: Frame) -> tuple[UnlikeSteps, ...]:
    of_ranks = steps.group_by("rank").agg(pl.col("dur").median().alias("recorded"))
    unlike = ranks.filter(pl.col("typical") == False).join(of_ranks, on="rank")  # noqa: E712 - null is neither
    apart = (pl.col("recorded") / pl.col("other_step")).log().abs()
    found = unlike.sort(apart, "rank", descending=(True, False)).select("rank", "recorded", "other_steps", "other_step")
    return tuple(UnlikeSteps(*row) for row in found.iter_rows())


def over_ranks(values: Iterable[float | None]) -> OverRanks | None:
    """Return how the known values are distributed; None if none is known."""
    known = np.sort(np.array([value for value in values if value is not None], dtype=np.float64))
    if not len(known):
        return None
    counts, _ = np.histogram(known, bins=_BARS)
    lowest, quarter, median, three_quarters, highest = np.quantile(known, (0.0, 0.25, 0.5, 0.75, 1.0)).tolist()
    return OverRanks(len(known), lowest, quarter, median, three_quarters, highest, tuple(counts.tolist()))


def _known_parts(steps: Frame) -> tuple[Frame, list[str]]:
    """Return the steps of the ranks that know the same parts as most of them do, and the names of the other parts."""
    unknown = pl.concat_list(pl.when(pl.col(name).is_null().any()).then(pl.lit(name)) for name in _PARTS)
    of_ranks = steps.group_by("rank").agg(unknown.list.drop_nulls().first().alias("unknown"))
    usual = of_ranks.group_by("unknown").len().sort("len", pl.col("unknown").list.len(), descending=(True, False))
    if usual.is_empty():
        return steps, list(_PARTS)
    names: list[str] = usual["unknown"][0].to_list()
    same = of_ranks.filter(pl.col("unknown").list.len() == len(names)).select("rank")
    return steps.join(same, on="rank", how="semi"), names


def _over_ranks(steps: Frame, names: Sequence[str]) -> tuple[PartOverRanks, ...]:
    """Return parts of the mean step, each with the lowest and highest mean of a rank."""
    if steps.is_empty():
        return ()
    whole = int(steps["dur"].sum())
    means = steps.group_by("rank").agg(pl.col(name).mean() for name in names)
    found = []
    for name in names:
        total = int(steps[name].sum())
        label = name.removesuffix("_phase").replace("_", " ")
        part = StepPart(label, total, total / len(steps), total / whole if whole else 0.0)
        found.append(PartOverRanks(part, _number(means[name].min()) or 0.0, _number(means[name].max()) or 0.0))
    return tuple(found)


def _operators(tables: JobTables) -> tuple[bool, tuple[OperatorOverRanks, ...]]:
    """Return whether kernels are known, and of these, else of the operators, those with most time."""
    on_device = (tables.operators["kind"] == "kernel").any()
    rows = tables.operators.filter(
        pl.col("kind") == ("kernel" if on_device else "operator"), pl.col("step").is_not_null()
    )
    steps = tables.steps.group_by("rank").agg(pl.len().alias("steps"))
    of_ranks = rows.group_by("rank", "name").agg(pl.col("count", "total").sum()).join(steps, on="rank")
    of_ranks = of_ranks.with_columns(pl.col("count", "total") / pl.col("steps"))
    whole = _number(of_ranks["total"].sum()) or 1.0
    found = (
        of_ranks.filter(pl.col("name") != "(others)")
        .sort("total", "rank", descending=(True, False))
        .group_by("name", maintain_order=True)
        .agg(
            pl.col("count").mean(),
            pl.col("total").median().alias("median_ns"),
            pl.col("total").min().alias("lowest_ns"),
            pl.col("total").max().alias("highest_ns"),
            pl.col("rank").first().alias("highest_rank"),
            (pl.col("total").sum() / whole).alias("share"),
        )
        .sort("share", "name", descending=(True, False))
        .head(_KEPT)
    )
    return bool(on_device), tuple(OperatorOverRanks(**row) for row in found.iter_rows(named=True))


def _communication(job: Job) -> JobCommunication | None:
    if job.tables.collectives.is_empty() or job.tables.steps.is_empty():
        return None
    steps, calls = job.tables.steps, job.tables.collectives.filter(pl.col("step").is_not_null())
    of_ranks = waits_of_steps(job.arrivals).group_by("rank").agg(pl.col("wait", "transit").mean())
    return JobCommunication(
        exposed_ns=_number(steps["communication"].mean()),
        overlapped_ns=_number(steps["overlapped"].mean()),
        wait_ns=_number(of_ranks["wait"].median()),
        transit_ns=_number(of_ranks["transit"].median()),
        count=len(calls) / len(steps),
    )


def _clocks(clocks: Frame) -> JobClocks:
    aligned = clocks.drop_nulls("offset_ns")
    others = clocks.filter(pl.col("offset_ns").is_null()).with_columns(pl.col("reason").fill_null(""))
    reasons = others.group_by("reason").agg(pl.col("rank").sort()).sort(pl.col("rank").list.len(), descending=True)
    return JobClocks(
        len(aligned),
        _number(aligned["uncertainty_ns"].max()),
        tuple((reason, tuple(ranks)) for reason, ranks in reasons.iter_rows()),
    )


def _losses(losses: Frame) -> tuple[LossOverRanks, ...]:
    found = losses.group_by("what", "severity").agg(pl.col("count").sum(), pl.col("rank").unique().sort())
    found = found.sort(pl.col("severity").replace_strict(_WORST, default=-1), "what")
    rows = found.select("what", "count", "severity", "rank").iter_rows()
    return tuple(LossOverRanks(what, count, severity, tuple(ranks)) for what, count, severity, ranks in rows)


def _number(value: Any) -> float | None:  # noqa: ANN401 - what an aggregation of Polars returns
    return None if value is None else float(value)
