"""What the step of a job would take if a rank, a stage or a collective took what its peers take.

The recorded job is put together again (:mod:`stepscope.cluster.what_if.replay`) with other times. Where a collective
queued behind another on all ranks, the data do not tell since when it was ready: both ends are computed, and the gain
lies between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.peers import median_of_others
from stepscope.cluster.what_if.critical_path import critical_path
from stepscope.cluster.what_if.event_graph import Floats
from stepscope.cluster.what_if.replay import Replay

Frame: TypeAlias = pl.DataFrame
Mask: TypeAlias = npt.NDArray[np.bool_]

#: Two-sided 95 % of normal numbers; standard deviation of normal numbers by their median absolute deviation.
_NORMAL_95, _MAD_TO_SIGMA = 1.96, 1.4826
#: The collectives must explain this share of the exposed communication, if that has more than this share of the steps.
_EXPLAINED_WAITS, _EXPLAINED = 0.9, 0.05
#: So many peers that pass their collectives in the same order say what a segment takes, however many others there are.
_PEERS = 2
#: Ranks of which the gain is computed: those that work longest beyond their peers.
_RANKS = 16

WHAT_IF_SCHEMA = {
    "by": pl.String,
    "key": pl.String,
    "step_ns": pl.Int64,
    "gain_ns": pl.Int64,
    "gain_low_ns": pl.Int64,
    "gain_high_ns": pl.Int64,
    "slowdown": pl.Float64,
}


class Gain(NamedTuple):
    """What a step of the job would save.

    Attributes:
        ns: Mean over the steps, ns.
        low: Lower end of the interval: what the data leave open, and the variation of the steps.
        high: Upper end.
        by_step: Gain of each step of :attr:`WhatIf.steps`, ns.
    """

    ns: int
    low: int
    high: int
    by_step: tuple[int, ...]


class WhatIf:
    """The what-if analysis of a job.

    Args:
        tables: The tables of the job.
        meetings: Its collectives with ``meeting``.
        arrivals: When each rank arrives at each meeting, on the job's clock.
        stages: rank, stage; no rows without a pipeline. Peers are ranks of one stage.

    Raises:
        ValueError: The data cannot say who waited for whom; the message says why.
    """

    def __init__(self, tables: JobTables, meetings: Frame, arrivals: Frame, stages: Frame) -> None:
        self._stage, self._arrivals = dict(stages.iter_rows()), arrivals
        recorded = Replay(tables, meetings, arrivals)
        _check_waits(tables.steps, recorded)
        ready = recorded.likely_ready(self._stage)
        self._late, self._early = (recorded.with_ready(*ready, early=early) for early in (False, True))
        self.steps = self._late.steps
        #: Ranks with a known clock; of others nothing can be said.
        self.ranks = self._late.ranks

    @cached_property
    def _work(self) -> tuple[_PeerWork, _PeerWork]:
        return _PeerWork(self._late, self._stage), _PeerWork(self._early, self._stage)

    @property
    def step_ns(self) -> int:
        """What a step takes, ns: the mean of the recorded ones."""
        return round(float(self._late.recorded.mean()))

    @property
    def critical_path(self) -> Frame:
        """The path through the ranks that decides how long the steps take; see :mod:`.critical_path`."""
        return critical_path(self._late, self._arrivals)

    @property
    def own_work(self) -> Frame:
        """What each rank does itself in each step, and the median of its peers: rank, step, own_ns, peers_ns."""
        return self._work[0].by_step

    def of_ranks(self, ranks: Collection[int], share: float = 1.0) -> Gain:
        """Return the gain if these ranks worked as long as their other peers.

        Args:
            ranks: Their numbers.
            share: Part of the difference that goes away, such as that of one operator.
        """
        return self._gain([work.replaced(ranks, share) for work in self._work], [None, None])

    def of_stage(self, stage: int) -> Gain:
        """Return the gain if a stage worked as long as the median of the other stages."""
        return self._gain([work.stage_replaced(stage) for work in self._work], [None, None])

    def balanced(self) -> Gain:
        """Return the gain if all stages shared their work evenly: layers that one gives away, others compute."""
        return self._gain([work.balanced for work in self._work], [None, None])

    def of_collectives(self, shorter: Frame) -> Gain:
        """Return the gain if collectives took another time once all ranks are there.

        Args:
            shorter: meeting, transit (ns); columns of further keys, such as ``rank``, narrow it down.
        """
        transits: list[Floats | None] = []
        for replay in (self._late, self._early):
            keys = [name for name in shorter.columns if name != "transit"]
            put = replay.rows.select(keys).join(
                shorter.rename({"transit": "put"}), on=keys, how="left", maintain_order="left"
            )
            transits.append(put.select(pl.coalesce("put", pl.Series("was", replay.transit)))["put"].to_numpy())
        return self._gain([None, None], transits)

    def _gain(self, work: Sequence[Floats | None], transit: Sequence[Floats | None]) -> Gain:
        saved = [
            replay.recorded - replay.step_times(one, other)
            for replay, one, other in zip((self._late, self._early), work, transit, strict=True)
        ]
        ends = sorted(float(one.mean()) for one in saved)
        middle = (saved[0] + saved[1]) / 2
        sigma = _MAD_TO_SIGMA * float(np.median(np.abs(middle - np.median(middle))))
        error = _NORMAL_95 * sigma / len(middle) ** 0.5
        gain = round(sum(ends) / 2)
        low = min(gain, max(0, round(ends[0] - error)))
        return Gain(gain, low, max(gain, round(ends[1] + error)), tuple(round(one) for one in middle.tolist()))

    @cached_property
    def table(self) -> Frame:
        """The result ``what_if``: what each rank, stage and kind of operation costs.

        Columns: by (job, step, operation, stage, rank), key, step_ns, gain_ns, gain_low_ns, gain_high_ns (had it taken
        what its peers take), slowdown (the step in which only it takes its recorded time, by the step without
        stragglers: Lin et al.). Of the ranks, those that work longest beyond their peers.
        """
        late, rows = self._late, self._late.rows
        usual = [work.usual for work in self._work]
        transits = [_usual_transit(replay) for replay in (self._late, self._early)]
        ideal = late.step_times(usual[0], transits[0]).mean()

        def slowdown(events: Mask | None, collectives: Mask | None) -> float:
            work = usual[0] if events is None else np.where(events, late.work, usual[0])
            transit = transits[0] if collectives is None else np.where(collectives, late.transit, transits[0])
            return float(late.step_times(work, transit).mean() / ideal)

        everything = np.ones(len(late.work), bool)
        of_job = self._gain(usual, transits)
        found = [
            ("job", "", of_job, slowdown(everything, np.ones(len(rows), bool))),
            *(
                (
                    "step",
                    str(step),
                    Gain(saved, saved, saved, (saved,)),
                    float(took / (took - saved)) if took > saved else None,
                )
                for step, saved, took in zip(self.steps, of_job.by_step, late.recorded, strict=True)
            ),
            ("operation", "own work", self._gain(usual, [None, None]), slowdown(everything, None)),
        ]
        for operation in rows["operation"].unique().sort():
            put = [
                np.where((replay.rows["operation"] == operation).to_numpy(), transit, replay.transit)
                for replay, transit in zip((self._late, self._early), transits, strict=True)
            ]
            alone = slowdown(None, (rows["operation"] == operation).to_numpy())
            found.append(("operation", operation, self._gain([None, None], put), alone))
        places = self._work[0].events
        for stage in sorted(set(self._stage.values())):
            alone = slowdown((places["stage"] == stage).to_numpy(), None)
            found.append(("stage", str(stage), self.of_stage(stage), alone))
        excess = self.own_work.group_by("rank").agg((pl.col("own_ns") - pl.col("peers_ns")).mean().alias("more"))
        ranks = excess.drop_nulls("more").sort("more", descending=True).head(_RANKS)["rank"].sort()
        found += [
            ("rank", str(rank), self.of_ranks([rank]), slowdown((places["rank"] == rank).to_numpy(), None))
            for rank in ranks
        ]
        columns = [(by, key, self.step_ns, one.ns, one.low, one.high, alone) for by, key, one, alone in found]
        return pl.DataFrame(columns, schema=WHAT_IF_SCHEMA, orient="row")


class _PeerWork:
    """The work of the ranks of a replay, and what that of their peers takes."""

    def __init__(self, replay: Replay, stage: dict[int, int]) -> None:
        self._recorded = replay.work
        self._stages = stage
        of_rank = pl.col("rank").replace_strict(stage, default=-1, return_dtype=pl.Int64)
        #: rank, step, program, segment, work, stage of each event.
        self.events = replay.segments.with_columns(stage=of_rank)
        step = ("stage", "step")
        totals = self.events.group_by("rank", *step, maintain_order=True).agg(own=pl.col("work").sum())
        self._totals = totals.with_columns(
            peers=median_of_others(totals, step, "own"), usual=pl.col("own").quantile(0.5, "lower").over("stage")
        )
        segment = ("program", "segment")
        segments = self.events.group_by("rank", *step, *segment, maintain_order=True).agg(own=pl.col("work").sum())
        # Ranks of a stage may pass their collectives in different orders: then the work of the whole step is compared.
        same, all_ranks = (pl.col("rank").n_unique().over(*step, *more) for more in (("program",), ()))
        self._segments = segments.with_columns(
            peers=median_of_others(segments, (*step, *segment), "own"),
            usual=pl.col("own").quantile(0.5, "lower").over("stage", *segment),
            shared=(same > _PEERS) | ((same > 1) & (2 * same > all_ranks)),
        )

    @property
    def by_step(self) -> Frame:
        """What each rank works in each step, and the median of its peers: rank, step, own_ns, peers_ns."""
        return self._totals.select("rank", "step", own_ns=pl.col("own").round(), peers_ns=pl.col("peers").round())

    @cached_property
    def _of_peers(self) -> Floats:
        """What each event would take after the work of the other ranks of its stage in its step, if there are any."""
        return self._put("peers")

    @cached_property
    def usual(self) -> Floats:
        """What each event would take if no rank and no step were slower than the others of its stage."""
        return self._put("usual")

    def _put(self, column: str) -> Floats:
        """Return the work of the events if that of each segment were ``column``, each event having its share of it."""
        segments = self._segments.select("rank", "step", "segment", "own", pl.when("shared").then(column).alias("put"))
        # A rank that does nothing itself in a step has no segment that could do more.
        works = self._totals.filter(pl.col("own") > 0)
        whole = works.select("rank", "step", whole=pl.col(column) / pl.col("own"))
        found = self.events.join(segments, on=["rank", "step", "segment"], how="left", maintain_order="left").join(
            whole, on=["rank", "step"], how="left", maintain_order="left"
        )
        put = pl.coalesce("put", pl.col("own") * pl.col("whole"), "own")
        last = pl.struct("rank", "step", "segment").is_last_distinct()
        alone = pl.when(last).then(put).otherwise(0.0)
        return found.select(pl.when(pl.col("own") > 0).then(pl.col("work") * put / pl.col("own")).otherwise(alone))[
            "work"
        ].to_numpy()

    def replaced(self, ranks: Collection[int], share: float) -> Floats:
        """Return the work of all events if these ranks had that of their other peers, by a share of the difference."""
        chosen = self.events["rank"].is_in(list(ranks)).to_numpy()
        work: Floats = np.where(chosen, self._recorded + share * (self._of_peers - self._recorded), self._recorded)
        return work

    def stage_replaced(self, stage: int) -> Floats:
        """Return the work of all events if a stage had that of the median of the others."""
        others = self._of_stages.filter(pl.col("stage") != stage).group_by("step").agg(put=pl.col("own").median())
        return self._scaled(self._of_stages.filter(pl.col("stage") == stage).join(others, on="step"))

    @property
    def balanced(self) -> Floats:
        """What each event would take if every stage had the mean work of all."""
        return self._scaled(self._of_stages.with_columns(put=pl.col("own").mean().over("step")))

    @property
    def _of_stages(self) -> Frame:
        """The work of the median rank of each stage: step, stage, own."""
        return self._totals.group_by("step", "stage").agg(pl.col("own").median())

    def _scaled(self, stages: Frame) -> Floats:
        """Return the work of all events if that of these stages, ``own``, were ``put``."""
        factors = stages.filter(pl.col("own") > 0).select("step", "stage", factor=pl.col("put") / pl.col("own"))
        factor = self.events.join(factors, on=["step", "stage"], how="left", maintain_order="left")["factor"]
        work: Floats = self._recorded * factor.fill_null(1.0).to_numpy()
        return work


def _check_waits(steps: Frame, replay: Replay) -> None:
    """Check that the collectives explain what the steps say of communication.

    Of transfers in one batch, a source may record the calls and not the work: their ends say nothing then.

    Raises:
        ValueError: They explain less than nine tenths of it.
    """
    same = steps.filter(pl.col("rank").is_in(replay.ranks.implode()), pl.col("step").is_in(replay.steps.implode()))
    stated = float(same["communication"].sum())
    waits = replay.met_waits
    if stated > _EXPLAINED * float(same["dur"].sum()) and waits < _EXPLAINED_WAITS * stated:
        msg = f"the recorded collectives explain {waits / stated:.0%} of the communication of the steps"
        raise ValueError(msg)


def _usual_transit(replay: Replay) -> Floats:
    """Return what each collective would take if it took what those of its sort do: operation, bytes, ranks."""
    rows = replay.rows.with_columns(put=pl.Series(replay.transit), size=pl.len().over("meeting"))
    usual = pl.col("put").quantile(0.5, "lower").over("operation", "bytes", "size")
    found: Floats = rows.select(pl.when(pl.col("transit").is_not_null()).then(usual).otherwise("put"))["put"].to_numpy()
    return found
