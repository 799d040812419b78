"""Stages of a pipeline that compute longer than the others, as findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import polars as pl

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.job.diagnosis import ms
from stepscope.analyse.quantities import number_text
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.what_if.job_what_if import Gain

Row: TypeAlias = dict[str, Any]
#: How many times as many calls a stage makes as others, and how many times as long one takes; None if unknown.
Calls: TypeAlias = tuple[float | None, float | None]

#: A stage that costs the job less than this share of its step is not worth a word.
_WORTH = 0.01


def slow_stage_findings(
    tables: JobTables, stages: pl.DataFrame, gain: Callable[[int, bool], Gain | None]
) -> list[Finding]:
    """Return a finding for each stage that is longer than the others.

    A stage of one rank may be longer because it has more to do, or because its rank is slow: the number of calls tells.

    Args:
        tables: The tables of the job.
        stages: What :func:`stepscope.cluster.pipeline.pipeline_stages` returns.
        gain: What the job's step saves if a stage works as long as the median of the others; or, if it has more to do
            than they, if all share that evenly. None if it is not known.
    """
    findings = []
    for row in stages.filter("slow").rows(named=True):
        calls = _more_calls(tables, stages, row), _slower_calls(tables, row)
        saved = gain(row["stage"], _explain(row, calls)[0])
        added = row["work_ns"] - row["others_ns"]
        if (added if saved is None else saved.ns) >= _WORTH * row["step_ns"]:
            findings.append(_finding(row, calls, added, saved))
    return findings


def _explain(row: Row, calls: Calls) -> list[bool]:
    """Return whether more calls make the stage longer, and whether slower ones do: half of what it is longer."""
    ratio = row["work_ns"] / max(row["others_ns"], 1)
    return [factor is not None and factor - 1 > (ratio - 1) / 2 for factor in calls]


def _more_calls(tables: JobTables, stages: pl.DataFrame, row: Row) -> float | None:
    """Return how many times as many calls a rank of the stage makes as one of the others; None if it is not known."""
    stage_of = stages.select("stage", rank="ranks").explode("rank")
    calls = tables.operators.join(stage_of, on="rank").group_by("rank", "stage").agg(pl.col("count").sum())
    here, others = (calls.filter((pl.col("stage") == row["stage"]) == same)["count"].median() for same in (True, False))
    return float(here / others) if here and others else None  # type: ignore[arg-type, operator]


def _slower_calls(tables: JobTables, row: Row) -> float | None:
    """Return how many times as long a usual operator takes the stage; None if the stages share none."""
    each = pl.col("total") / pl.col("count")
    calls = tables.operators.filter(pl.col("count") > 0).group_by("rank", "kind", "name").agg(each.min().alias("each"))
    here = calls.filter(pl.col("rank").is_in(row["ranks"])).group_by("kind", "name").agg(pl.col("each").median())
    others = calls.filter(~pl.col("rank").is_in(row["ranks"])).group_by("kind", "name").agg(pl.col("each").median())
    both = here.join(others, on=["kind", "name"]).filter(pl.col("each_right") > 0)
    return (both["each"] / both["each_right"]).median()  # type: ignore[return-value]


def _finding(row: Row, calls: Calls, added: int, saved: Gain | None) -> Finding:
    stage, ranks = row["stage"], tuple(row["ranks"])
    more, slower = calls
    # With one rank, only more work than the others have makes it the stage: more calls, or some that are larger.
    explains = _explain(row, calls)
    of_rank = len(ranks) == 1 and explains == [False, True]
    who = f"Rank {ranks[0]}, the only one of stage {stage}," if len(ranks) == 1 else f"Stage {stage} of the pipeline"
    evidence = [
        Evidence(
            text=f"{_they_compute(row)} ms a step, those of the other stages {ms(row['others_ns'])} ms (median)",
            value=float(added),
            unit="ns",
            result="cluster_pipeline",
            row={"stage": stage},
        )
    ]
    if slower is not None:
        text = (
            f"half of its operators take {number_text(slower)} times as long a call as those of the other stages, or "
            "less"
        )
        evidence.append(Evidence(text=text, value=slower))
    if more is not None:
        text = f"a rank of it makes {number_text(more)} times as many calls as one of the other stages"
        evidence.append(Evidence(text=text, value=more))
    return Finding(
        cause="slow-rank" if of_rank else "slow-stage",
        title=f"{who} computes {ms(row['work_ns'])} ms a step, the others {ms(row['others_ns'])} ms",
        gain_ns=saved.ns if saved else None,
        gain_low_ns=saved.low if saved else None,
        gain_high_ns=saved.high if saved else None,
        basis="the recorded job, put together again with "
        + ("its work shared evenly by the stages" if explains[0] else "the work of the other stages")
        if saved
        else "",
        confidence=Confidence.MEASURED if len(ranks) > 1 else Confidence.LIKELY,
        evidence=tuple(evidence),
        remedy=_remedy(of_rank=of_rank, stage=stage),
        check="stepscope report RUN",
        ranks=ranks,
        stage=stage,
        added_ns=added,
    )


def _they_compute(row: Row) -> str:
    if len(row["ranks"]) == 1:
        return f"its rank computes {ms(row['work_ns'])}"
    return f"its ranks compute {ms(row['fastest_ns'])}–{ms(row['slowest_ns'])}"


def _remedy(*, of_rank: bool, stage: int) -> str:
    if of_rank:
        return "Compare its device with the others: clocks and power (nvidia-smi -q -d PERFORMANCE), other processes."
    return (
        f"Give stage {stage} fewer layers: count the embedding and the loss as layers when the model is divided "
        "(Megatron: --decoder-first-pipeline-num-layers, --decoder-last-pipeline-num-layers)."
    )
