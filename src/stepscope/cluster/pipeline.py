"""The stages of a pipeline: what each computes, how long it waits, and which of them is longer than the others.

All ranks of a slow stage take longer than those of the other stages; a slow rank takes longer than those of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.cluster.slow.own_time import own_time

Frame: TypeAlias = pl.DataFrame

#: How much stages of a healthy job differ, as a standard deviation of the logarithm of their work.
_SPREAD = 0.015
#: Steps of a pipeline last equally long on all stages, up to this factor; those shorter than this share of the longest
#: only fill the queue of the device.
_LOCKSTEP, _QUEUEING = 1.03, 0.5
#: A stage is slow if it differs from the others by so many standard deviations: of several stages, and of two, which do
#: not tell how much stages of this job differ.
_SIGMAS, _SIGMAS_OF_TWO = 4.0, 5.5
_MAD_TO_SIGMA = 1.4826

STAGES_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "stage": pl.Int64,
    "ranks": pl.List(pl.Int32),
    "step_ns": pl.Int64,
    "work_ns": pl.Int64,
    "fastest_ns": pl.Int64,
    "slowest_ns": pl.Int64,
    "others_ns": pl.Int64,
    "bubble": pl.Float64,
    "slow": pl.Boolean,
}


def pipeline_stages(steps: Frame, meetings: Frame, stages: Frame, on_host: Collection[int] = ()) -> Frame:
    """Return what each stage does: the result ``cluster_pipeline``.

    Args:
        steps: The steps of the ranks.
        meetings: Its collectives; of ``send`` and ``recv`` the part in which nothing computes is the bubble.
        stages: rank, stage.
        on_host: Ranks whose host computes; it works for a step within that step, however long this is.

    Returns:
        stage, ranks, step_ns, work_ns (computing of a rank in a step: the median), fastest_ns and slowest_ns (of its
        ranks), others_ns (median of the other stages), all of the steps that last equally long on all stages, or of all
        steps if none does; bubble (share of the step in which its ranks wait for another
        stage; null where it is not known), slow (false if no step lasts equally long); no rows without a pipeline.
    """
    if stages["stage"].n_unique() < 2:
        return pl.DataFrame(schema=STAGES_SCHEMA)
    moves = meetings.filter(pl.col("operation").is_in(("send", "recv", "isend", "irecv", "sendrecv")))
    waits = moves.group_by("rank", "step").agg(_united_waits())
    placed = steps.join(stages, on="rank")
    hosts = set(stages["rank"]) <= {*on_host}
    if hosts:
        placed = placed.drop("computing").join(_of_hosts(steps, on_host), on=["rank", "step"], how="left")
    equal = placed["step"].unique() if hosts else _equally_long(placed)
    own = (
        placed.filter(pl.col("step").is_in(equal.implode()) | equal.is_empty())
        .join(waits, on=["rank", "step"], how="left")
        .with_columns(work=pl.coalesce("computing", pl.col("dur") - pl.col("communication")))
        .group_by("stage", "rank")
        .agg(
            pl.col("dur").median(),
            pl.col("work").median(),
            bubble=pl.col("waits").sum() / pl.col("dur").sum(),
            error=(pl.col("work").std() / pl.col("work").median() / pl.len().sqrt()).fill_null(0),
        )
    )
    each = own.group_by("stage").agg(
        pl.col("rank").sort().alias("ranks"),
        step_ns=pl.col("dur").median(),
        work_ns=pl.col("work").median(),
        fastest_ns=pl.col("work").min(),
        slowest_ns=pl.col("work").max(),
        bubble=pl.col("bubble").median(),
        error=pl.col("error").median(),
    )
    work = each.sort("stage")["work_ns"].to_list()
    others = [pl.Series(work[:place] + work[place + 1 :]).median() for place in range(len(work))]
    found = each.sort("stage").with_columns(others_ns=pl.Series(others, dtype=pl.Float64))
    return found.with_columns(slow=_is_slow(found) & (not equal.is_empty())).select(
        pl.col(name).round().cast(dtype) if dtype == pl.Int64 and name != "stage" else pl.col(name).cast(dtype)
        for name, dtype in STAGES_SCHEMA.items()
    )


def _equally_long(steps: Frame) -> pl.Series:
    """Return the steps that last equally long on all stages.

    Others are those of a host that runs ahead of its device: how much of a step's work lies in them is chance.
    """
    each = steps.group_by("step", "stage").agg(pl.col("dur").median()).group_by("step", maintain_order=True)
    spread = each.agg(low=pl.col("dur").min(), high=pl.col("dur").max())
    equal = pl.col("high") <= _LOCKSTEP * pl.col("low")
    return spread.filter(equal & (pl.col("low") > _QUEUEING * pl.col("high").max()))["step"]


def _united_waits() -> pl.Expr:
    """Return the time in which a rank waits in transfers that run at the same time: the ends of each, united."""
    end = pl.col("ts") + pl.col("dur")
    start = end - pl.col("exposed")
    by_start = start.arg_sort()
    before = end.gather(by_start).cum_max().shift()
    return (end.gather(by_start) - pl.max_horizontal(start.gather(by_start), before)).clip(0).sum().alias("waits")


def _is_slow(stages: Frame) -> pl.Series:
    """Return which stages are longer than the others, all of their ranks: one rank alone does not make a stage slow."""
    if not (stages["fastest_ns"] > 0).all():  # work that nobody recorded has no ratio to that of others
        return pl.Series([False]).new_from_index(0, len(stages))
    log, several = stages["work_ns"].log().to_numpy(), len(stages) > 2
    # Ranks of a stage tell how much alike work differs, and steps how certain it is; with two stages, these do not.
    within = (stages["slowest_ns"] / stages["fastest_ns"]).log().median()
    spread = np.full(len(log), max(_SPREAD, float(within or 0) / 2))  # type: ignore[arg-type]
    if several:
        rest = [np.delete(log, place) for place in range(len(log))]
        alike = [float(np.median(np.abs(others - np.median(others)))) for others in rest]
        spread = np.maximum(spread, _MAD_TO_SIGMA * np.array(alike))
    # How steps of a slow stage vary says nothing of what is usual.
    sigma = np.hypot(spread, 2**0.5 * float(np.median(stages["error"].to_numpy())))
    longer = log - stages["others_ns"].log().to_numpy()
    every = (stages["fastest_ns"] / stages["others_ns"]).log().to_numpy() > longer / 2
    return pl.Series((longer > (_SIGMAS if several else _SIGMAS_OF_TWO) * sigma) & every)


def _of_hosts(steps: Frame, ranks: Collection[int]) -> Frame:
    """Return what hosts compute in each step, without what they wait for a core: rank, step, computing."""
    times = own_time(steps, ranks)
    each = pl.DataFrame({"rank": times.ranks}).join(pl.DataFrame({"step": times.steps}), how="cross")
    computing = pl.Series("computing", times.parts["computing"].ravel()).fill_nan(None)
    return each.with_columns(computing).cast({name: steps.schema[name] for name in ("rank", "step")})
