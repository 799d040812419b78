"""Operations of a job with pipeline parallelism → what its stragglers cost, as Lin et al. (OSDI 2025) define it.

Every operation takes what the others of its type take (mean of those that compute, median of those that communicate),
and the step is put together again from what waits for what. The slowdown is the recorded step, without the delays of
launching, by that step; what a worker, stage or type of operation adds is that step with its own recorded times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.what_if.event_graph import EventGraph, Floats
from stepscope.cluster.what_if.pipeline_order import (
    COMMUNICATION,
    OPTIMIZER,
    REPLICATED,
    TRANSFERS,
    Operation,
    pipeline_order,
)

Frame: TypeAlias = pl.DataFrame
Mask: TypeAlias = npt.NDArray[np.bool_]
#: Transfers and launches that end this much before they can, in seconds, are errors of the clocks: they took no time.
BACKWARDS = 1e-2
#: Share of the workers that is taken for the slow ones.
WORST = 0.03


class Replaced(NamedTuple):
    """What one group of operations explains of the slowdown; times are means over the steps, in seconds.

    Attributes:
        without: Step in which only these take their ideal time.
        alone: Step in which only these take their recorded time.
        share: Part of the slowdown that goes away without them.
        added: Part of the slowdown that they alone make.
    """

    without: float
    alone: float
    share: float
    added: float


class PipelineStragglers:
    """The what-if analysis of one job.

    Args:
        operations: One row an operation: dp_rank, stage, step, optype, start_ts, duration (seconds), seq_id (its
            number among those of its type, rank and step), mc, gmc; the columns that Lin et al. published.

    Raises:
        ValueError: A step lacks an operation that the first step has.
    """

    def __init__(self, operations: Frame) -> None:
        rows = operations.with_columns(pl.col("optype").cast(pl.String), end_ts=pl.col("start_ts") + pl.col("duration"))
        self.steps = rows["step"].unique().sort()
        self.replicas = int(rows["dp_rank"].max()) + 1  # type: ignore[arg-type]
        pipeline = rows.filter(pl.col("dp_rank") == 0, pl.col("step") == self.steps[0])
        self._order = pipeline_order(pipeline.to_dicts(), replicated=self.replicas > 1)
        self.operations = list(self._order.causes)
        self._number = {operation: number for number, operation in enumerate(self.operations)}
        begin, end = self._grid(rows, "start_ts"), self._grid(rows, "end_ts")
        self._origin = begin.min(axis=(0, 1))
        self._last = end.max(axis=(0, 1))
        self._meets = np.zeros(len(self.operations), bool)
        self._graph, self._launched, self._worked = self._join()
        self.launch = self._launch_delays(begin, end)
        #: What each operation takes from when all that take part have arrived, by operation, replica and step.
        self.recorded = self._own_times(begin, end)

    def _grid(self, rows: Frame, column: str) -> Floats:
        """Return a column of the operations as an array of operation × replica × step."""
        places = pl.DataFrame(
            {
                "optype": [operation.kind for operation in self.operations],
                "stage": [operation.stage for operation in self.operations],
                "seq_id": [operation.number for operation in self.operations],
                "place": np.arange(len(self.operations)),
            },
            schema_overrides={name: rows.schema[name] for name in ("stage", "seq_id")},
        )
        found = rows.join(places, on=["optype", "stage", "seq_id"])
        grid: Floats = np.full((len(self.operations), self.replicas, len(self.steps)), np.nan)
        steps = np.searchsorted(self.steps.to_numpy(), found["step"].to_numpy())
        grid[found["place"].to_numpy(), found["dp_rank"].to_numpy(), steps] = found[column].to_numpy()
        if np.isnan(grid).any():
            place, replica, step = (int(index[0]) for index in np.nonzero(np.isnan(grid)))
            operation = self.operations[place]
            msg = (
                f"step {self.steps[step]} of data-parallel rank {replica}, stage {operation.stage} has no "
                f"{operation.kind} {operation.number}, as the first step has"
            )
            raise ValueError(msg)
        return grid

    def _groups(self) -> list[tuple[list[int], bool]]:
        """Return the operations that end together, and whether those of all replicas do."""
        return [
            ([self._number[operation] for operation in meeting], self.replicas > 1 and meeting[0].kind in REPLICATED)
            for meeting in self._order.meetings
        ]

    def _join(self) -> tuple[EventGraph, tuple[slice, npt.NDArray[np.int64]], tuple[slice, npt.NDArray[np.int64]]]:
        """Return the events of a step: the start and end of each operation, each meeting, and the start of the step.

        Beside it the edges whose delay is that of a launch, and those whose delay is an operation's own time, each with
        the operations they belong to.
        """
        size, replicas = len(self.operations), self.replicas
        launched: list[tuple[int, int, int]] = []
        worked: list[tuple[int, int, int]] = []
        arrived: list[tuple[int, int, int]] = []
        origin = 2 * size * replicas
        events = origin + 1
        for replica in range(replicas):
            starts, ends = replica * size, (replicas + replica) * size
            for operation, causes in self._order.causes.items():
                number = self._number[operation]
                before = [ends + self._number[cause] for cause in causes] or [origin]
                launched += [(cause, starts + number, number * replicas + replica) for cause in before]
        for members, shared in self._groups():
            self._meets[members] = True
            for replica in range(replicas):
                events += replica == 0 or not shared
                for number in members:
                    arrived.append((replica * size + number, events - 1, 0))
                    worked.append((events - 1, (replicas + replica) * size + number, number * replicas + replica))
        for number in np.flatnonzero(~self._meets).tolist():
            for replica in range(replicas):
                start = replica * size + number
                worked.append((start, start + replicas * size, number * replicas + replica))
        edges = np.array([*launched, *worked, *arrived])
        first, second = len(launched), len(launched) + len(worked)
        graph = EventGraph(edges[:, 0], edges[:, 1], events)
        return graph, (slice(first), edges[:first, 2]), (slice(first, second), edges[first:second, 2])

    def _launch_delays(self, begin: Floats, end: Floats) -> Floats:
        delays = np.empty_like(begin)
        for operation, causes in self._order.causes.items():
            number = self._number[operation]
            before = [end[self._number[cause]] for cause in causes]
            delays[number] = begin[number] - (np.maximum.reduce(before) if before else self._origin)
        delays[delays <= -BACKWARDS] = 0
        return delays

    def _own_times(self, begin: Floats, end: Floats) -> Floats:
        own = end - begin
        for members, shared in self._groups():
            last = begin[members].max(axis=0)
            own[members] = end[members] - (last.max(axis=0) if shared else last)
        own[self._meets[:, None, None] & (own <= -BACKWARDS)] = 0
        return own

    def step_times(self, own: Floats, launch: Floats | None = None) -> Floats:
        """Return the duration of each step, seconds.

        Args:
            own: What each operation takes, as :attr:`recorded`.
            launch: How long each waits before it starts; nothing without it.
        """
        edges = np.zeros((self._launched[0].stop + len(self._worked[1]), len(self.steps)))
        if launch is not None:
            edges[self._launched[0]] = launch.reshape(-1, len(self.steps))[self._launched[1]]
        edges[self._worked[0]] = own.reshape(-1, len(self.steps))[self._worked[1]]
        delays = np.zeros((self._graph.edges, len(self.steps)))
        delays[: len(edges)] = edges
        times = self._graph.times(delays)
        size = len(self.operations)
        ends = times[size * self.replicas : 2 * size * self.replicas].reshape(self.replicas, size, -1)
        last = [number for number, operation in enumerate(self.operations) if operation.kind == OPTIMIZER]
        return np.asarray(ends[:, last].max(axis=(0, 1)))

    @cached_property
    def ideal(self) -> Floats:
        """What each operation takes if nothing is slower than the others of its type."""
        own = np.empty_like(self.recorded)
        kinds = np.array([operation.kind for operation in self.operations])
        for kind in set(kinds):
            same = self.recorded[kinds == kind]
            own[kinds == kind] = np.median(same) if kind in COMMUNICATION else np.mean(same)
        return own

    @cached_property
    def step_t_base(self) -> Floats:
        """Duration of each step as recorded."""
        base: Floats = self._last - self._origin
        return base

    @cached_property
    def step_t_nodelay(self) -> Floats:
        """Duration of each step if every operation starts when what it waits for has ended."""
        return self.step_times(self.recorded)

    @cached_property
    def step_t_ideal(self) -> Floats:
        """Duration of each step without stragglers."""
        return self.step_times(self.ideal)

    @property
    def launch_slowdown(self) -> float:
        """How much longer the steps take because operations start later than they could."""
        return float(self.step_t_base.mean() / self.step_t_nodelay.mean())

    @property
    def slowdown(self) -> float:
        """How much longer the steps take because of stragglers."""
        return float(self.step_t_nodelay.mean() / self.step_t_ideal.mean())

    def attribution(self, by: str) -> Frame:
        """Return the slowdown that each type of operation, replica or stage makes alone: of all steps, and of each.

        Args:
            by: ``optype`` (transfers of one direction as one), ``dp_rank`` or ``stage``.

        Returns:
            Columns: by, step (null: all), slowdown.
        """
        if by == "dp_rank":
            masks: dict[str | int, Mask] = {
                rank: np.arange(self.replicas)[None] == rank for rank in range(self.replicas)
            }
        else:
            name: Callable[[Operation], str | int] = (lambda one: one.stage) if by == "stage" else _attributed
            names = [name(operation) for operation in self.operations]
            masks = {key: np.array([[one == key] for one in names]) for key in dict.fromkeys(names)}
        frames = []
        for key, mask in masks.items():
            alone = self.step_times(np.where(mask[:, :, None], self.recorded, self.ideal))
            slowdowns = [float(alone.mean() / self.step_t_ideal.mean()), *(alone / self.step_t_ideal)]
            frames.append(pl.DataFrame({by: key, "step": [None, *self.steps], "slowdown": slowdowns}))
        return pl.concat(frames)

    def replaced(self, chosen: Mask) -> Replaced:
        """Return what the chosen operations (of operation × replica) explain of the slowdown."""
        recorded, ideal = self.step_t_nodelay.mean(), self.step_t_ideal.mean()
        mask = np.broadcast_to(chosen[:, :, None], self.recorded.shape)
        without = self.step_times(np.where(mask, self.ideal, self.recorded)).mean()
        alone = self.step_times(np.where(mask, self.recorded, self.ideal)).mean()
        lost = recorded - ideal
        return Replaced(float(without), float(alone), float((recorded - without) / lost), float((alone - ideal) / lost))

    @property
    def last_stage(self) -> Replaced:
        """What the last stage explains of the slowdown: M_S of Lin et al."""
        stages = np.array([operation.stage for operation in self.operations])
        return self.replaced(np.repeat((stages == stages.max())[:, None], self.replicas, axis=1))

    @property
    def worst_workers(self) -> Replaced:
        """What the worst 3 % of the workers explain of the slowdown: M_W of Lin et al."""
        whole = pl.col("step").is_null()
        by_replica = self.attribution("dp_rank").filter(whole).sort("dp_rank")["slowdown"].to_numpy()
        by_stage = self.attribution("stage").filter(whole).sort("stage")["slowdown"].to_numpy()
        scores = np.minimum.outer(by_stage, by_replica)
        worst = np.argsort(-scores, axis=None, kind="stable")[: math.ceil(scores.size * WORST)]
        chosen = np.zeros(scores.shape, bool)
        chosen.flat[worst] = True
        return self.replaced(chosen[[operation.stage for operation in self.operations]])


def _attributed(operation: Operation) -> str:
    direction = operation.kind.split("-")[0]
    return f"{direction}-pp-comm" if operation.kind in TRANSFERS else operation.kind
