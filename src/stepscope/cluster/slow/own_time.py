"""Steps of ranks as arrays of rank by step: what each rank takes itself, and what it spends in communication.

A rank's **own time** is its step without the communication that nothing of its own hides. In a job that works in
lockstep, steps are equally long on all ranks; the one with the longest own time waits for nobody, and the others wait
for it. Both are durations by a rank's own clock, so no clock can be wrong about them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.cluster.slow.outliers import Floats

#: What a rank's own time consists of → the columns of the table ``steps`` that are it.
PARTS: dict[str, tuple[str, ...]] = {
    "computing": ("computing", "copy"),
    "data_wait": ("data_wait",),
    "host": ("host_only", "idle", "sync"),
}
#: What lies within those parts.
BESIDES = ("garbage", "delay", "data_total")
#: Ranks that wait for a core for more than this share of their steps are disturbed.
_DISTURBED = 0.05
#: Of the steps of disturbed ranks, the tenth in which an operator is shortest says what it takes by itself.
QUIET = 0.1
#: The quartiles of the lengths of steps differ by no more than this factor, unless the host runs ahead of the device.
_STEADY = 1.3
#: Time of operators in which their thread neither runs nor waits for a core, while communication runs, ns: the thread
#: waits for that inside of the operator, as in a node of autograd that needs the parameters of other ranks.
_AWAY = pl.col("computing") + pl.col("host_only").fill_null(0) - pl.col("cpu") - pl.col("delay")
_ASLEEP = (pl.col("overlapped"), _AWAY)
_HIDDEN = pl.when(pl.all_horizontal(one.is_not_null() for one in _ASLEEP)).then(pl.min_horizontal(_ASLEEP).clip(0))
#: From this share of the steps on, such waits decide how a gain is computed.
_MUCH_HIDDEN = 0.05


@dataclass(frozen=True)
class OwnTime:
    """Times of ranks in steps, ns; one row a rank, one column a step; NaN where it is not known.

    Attributes:
        ranks: Number of the rank of each row.
        steps: Number of the step of each column.
        length: Durations of the steps.
        communication: Communication that nothing hides.
        parts: The parts of the own time, and what lies within them.
        queued: The part of the step without communication in which the rank waits for a core; 0 where not known.
    """

    ranks: list[int]
    steps: list[int]
    length: Floats
    communication: Floats
    parts: dict[str, Floats]
    queued: Floats

    @property
    def disturbed(self) -> bool:
        """Whether a rank waits for a core so long that its calls take much longer in some steps than in others."""
        share = np.where(self.length > 0, self.queued / np.maximum(self.length, 1), 0.0)
        return share.size > 0 and bool((np.median(share, axis=1) > _DISTURBED).any())

    @property
    def blurred(self) -> bool:
        """Whether steps of the host say little about those of the device, because it runs ahead: only sums are known.

        Its steps are then of any length. Where it is known what launched the work, steps are those of the device.
        """
        low, high = np.nanquantile(np.nanmedian(self.length, axis=0), [0.25, 0.75])
        return bool(high > _STEADY * low)

    def averaged(self) -> OwnTime:
        """Return the same with one column: the mean over the steps."""

        def mean(matrix: Floats) -> Floats:
            return np.asarray(matrix.mean(axis=1, keepdims=True), np.float64)

        parts = {name: mean(matrix) for name, matrix in self.parts.items()}
        communication, queued = mean(self.communication), mean(self.queued)
        return OwnTime(self.ranks, self.steps[:1], mean(self.length), communication, parts, queued)

    @property
    def own(self) -> Floats:
        """The own time."""
        return self.length - self.communication - self.queued

    @property
    def with_delay(self) -> OwnTime:
        """The same with the waits for a core in the own time."""
        parts = {**self.parts, "computing": self.parts["computing"] + self.queued}
        return replace(self, parts=parts, queued=np.zeros_like(self.queued))

    def only(self, rows: list[int]) -> OwnTime:
        """Return the same of some ranks, with the steps that one of them has."""
        columns = np.flatnonzero(~np.isnan(self.length[rows]).all(axis=0))

        def kept(matrix: Floats) -> Floats:
            return matrix[rows][:, columns]

        return OwnTime(
            [self.ranks[row] for row in rows],
            [self.steps[column] for column in columns],
            kept(self.length),
            kept(self.communication),
            {name: kept(matrix) for name, matrix in self.parts.items()},
            kept(self.queued),
        )


def hides_waits(steps: pl.DataFrame, on_host: Collection[int]) -> bool:
    """Return whether ranks whose host computes wait for others inside of their operators, for much of their steps."""
    share = steps.filter(pl.col("rank").is_in(on_host)).select(_HIDDEN.sum() / pl.col("dur").sum()).item()
    return bool((share or 0) > _MUCH_HIDDEN)


def own_time(steps: pl.DataFrame, on_host: Collection[int] = ()) -> OwnTime:
    """Return the times of the table ``steps``; of a step that a rank has twice, the first counts.

    Args:
        steps: The table.
        on_host: Ranks whose host computes.
    """
    rows = steps.unique(["rank", "step"], keep="first", maintain_order=True).with_columns(hidden=_HIDDEN)
    ranks, numbers = rows["rank"].unique().sort(), rows["step"].unique().sort()
    place = (
        np.searchsorted(ranks.to_numpy(), rows["rank"].to_numpy()),
        np.searchsorted(numbers.to_numpy(), rows["step"].to_numpy()),
    )

    def matrix(*columns: str) -> Floats:
        result = np.full((len(ranks), len(numbers)), np.nan)
        result[place] = rows.select(pl.sum_horizontal(columns, ignore_nulls=False).cast(pl.Float64)).to_series()
        return result

    parts = {name: matrix(*columns) for name, columns in PARTS.items()}
    besides = {name: matrix(name) for name in BESIDES}
    length, communication = matrix("dur"), matrix("communication")
    hosts = np.isin(ranks.to_numpy(), [*on_host])[:, None]
    hidden = np.where(hosts, np.nan_to_num(matrix("hidden")), 0.0)
    communication, parts["computing"] = communication + hidden, parts["computing"] - hidden
    alone = length - communication
    # The run-queue delay is that of the whole step. What computes or sleeps in its own time is not delay.
    other = np.fmax(matrix("cpu"), np.nan_to_num(matrix("idle")) + np.nan_to_num(matrix("data_wait")))
    queued = np.clip(matrix("delay"), 0, np.maximum(alone - other, 0))
    queued = np.where(hosts & ~np.isnan(queued), queued, 0.0)
    # A thread that wants a core computes, calls operators or collects garbage: each as much longer as it waits for one.
    # Of what it waits for otherwise, the delay is a part that nobody notices.
    host = np.nan_to_num(matrix("host_only"))
    wants = np.nan_to_num(parts["computing"]) + host
    kept = np.clip(1 - queued / np.maximum(wants, 1), 0, 1)
    parts |= {"computing": parts["computing"] * kept, "host": parts["host"] - host * (1 - kept)}
    besides["garbage"] *= kept
    return OwnTime(ranks.to_list(), numbers.to_list(), length, communication, {**parts, **besides}, queued)
