"""Collectives of jobs whose clocks are known: small tables of a job, as summaries of ranks make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.job_tables import JobTables, conform

Times = npt.NDArray[np.float64]
START = 1_700_000_000_000_000_000
MS, US = 1_000_000, 1_000


@dataclass
class Simulated:
    """A job: rows by true time, and the clock of each rank.

    Attributes:
        world: Number of ranks.
        jitter: Exit jitter, in ns: a standard deviation.
        offset: Local less true time of each rank at START, in ns.
        drift: Rate of the local clock, less 1.
        jump: For a rank, when (ns after START) its clock is set, and by how much.
        lopsided: Whether a rank leaves late now and then, never early.
    """

    world: int
    jitter: float = 2 * US
    seed: int = 0
    drift_ppm: float = 50.0
    spread_s: float = 5.0
    lopsided: bool = False
    jump: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)
        self.offset = self.chance.uniform(-self.spread_s, self.spread_s, self.world) * 1e9
        self.drift = self.chance.uniform(-self.drift_ppm, self.drift_ppm, self.world) / 1e6
        self.rows: list[dict[str, Any]] = []
        self.groups: dict[tuple[int, ...], int] = {}
        self._number: dict[Any, int] = {}
        self.step, self.time = 0, 0.0

    def local(self, rank: npt.NDArray[np.int64], time: Times) -> npt.NDArray[np.int64]:
        """Return what the clocks of ranks show at true times (ns after START)."""
        shown = time * (1 + self.drift[rank]) + self.offset[rank]
        for one, (when, by) in self.jump.items():
            shown = shown + np.where((rank == one) & (time >= when), by, 0.0)
        return np.round(shown).astype(np.int64) + START

    def exits(self, count: int) -> Times:
        if self.lopsided:
            return self.chance.exponential(self.jitter, count)
        return self.chance.normal(0, self.jitter, count)

    def collective(
        self, ranks: Sequence[int], operation: str = "allreduce", size: int = 1 << 20, ms: float = 1.0
    ) -> None:
        """All ``ranks`` arrive around now, and leave together."""
        members = np.array(ranks)
        group = self.groups.setdefault(tuple(ranks), len(self.groups))
        arrive = self.time + self.chance.exponential(0.5 * MS, len(members))
        end = arrive.max() + ms * MS + self.exits(len(members))
        number = self._number[group] = self._number.get(group, -1) + 1
        self.add(members, arrive, end, group=group, operation=operation, sequence=number, bytes_in=size, bytes_out=size)

    def transfer(self, source: int, destination: int, *, eager: bool = False, late: float = 0.0) -> None:
        """``source`` sends to ``destination``; an eager send does not wait for its recv."""
        pair = np.array([source, destination])
        arrive = self.time + self.chance.exponential(0.5 * MS, 2) + np.array([0.0, late])
        end = arrive.max() + 0.02 * MS + self.exits(2)
        if eager:
            end = np.array([arrive[0] + 0.02 * MS, max(arrive[1] + 0.01 * MS, arrive[0] + 0.02 * MS)]) + self.exits(2)
        number = self._number[source, destination] = self._number.get((source, destination), -1) + 1
        common: dict[str, Any] = {"group": None, "sequence": number, "source": source, "destination": destination}
        for side, operation in ((0, "send"), (1, "recv")):
            one = slice(side, side + 1)
            self.add(pair[one], arrive[one], end[one], operation=operation, bytes_in=4096, bytes_out=4096, **common)

    def next_step(self, ms: float = 10.0) -> None:
        self.step += 1
        self.time += ms * MS * self.chance.uniform(0.9, 1.1)

    def add(self, ranks: npt.NDArray[np.int64], arrive: Times, end: Times, **columns: Any) -> None:
        """Add a collective that ranks arrive at and leave at true times."""
        begin, stop = self.local(ranks, arrive), self.local(ranks, end)
        self.rows.append({"rank": ranks, "ts": begin, "dur": stop - begin, "step": self.step, **columns})
        self.time = float(end.max())

    def tables(self, **ranks: Any) -> JobTables:
        """Return the tables; ``ranks`` are columns of the table of that name."""
        parts = []
        for row in self.rows:
            size = len(row["rank"])
            parts.append(
                {name: [value] * size if np.ndim(value) == 0 else value.tolist() for name, value in row.items()}
            )
        names = dict.fromkeys(name for part in parts for name in part)
        rows = {
            name: [value for part in parts for value in part.get(name, [None] * len(part["rank"]))] for name in names
        }
        collectives = pl.DataFrame(rows, infer_schema_length=None).sort("rank", "ts", maintain_order=True)
        each = pl.DataFrame(
            {"rank": range(self.world), "directory": [f"rank{one}" for one in range(self.world)], **ranks}
        )
        groups = pl.DataFrame(
            {
                "id": list(self.groups.values()),
                "ranks": [sorted(ranks) for ranks in self.groups],
                "size": [len(ranks) for ranks in self.groups],
            },
            schema={"id": pl.Int32, "ranks": pl.List(pl.Int64), "size": pl.Int64},
        )
        return JobTables(
            ranks=conform("ranks", each.with_columns(world_size=pl.lit(self.world))),
            collectives=conform("collectives", collectives),
            groups=conform("groups", groups),
        )

    def errors(self, clocks: pl.DataFrame, tables: JobTables) -> dict[int, float]:
        """Return the largest error of each rank that has a clock, in ns, at both ends of its recording.

        Job time is the clock of the rank with offset 0: the error is what that clock would show.
        """
        known = clocks.drop_nulls("offset_ns")
        [reference] = known.filter((pl.col("offset_ns") == 0) & (pl.col("drift_ppm").fill_null(0) == 0))["rank"][:1]
        found: dict[int, float] = {}
        windows = tables.collectives.group_by("rank").agg(pl.col("ts").min().alias("a"), pl.col("ts").max().alias("b"))
        for row in known.join(windows, on="rank").iter_rows(named=True):
            rank, worst = row["rank"], 0.0
            for at in (row["a"], row["b"]):
                true = (at - START - self.offset[rank]) / (1 + self.drift[rank])
                wanted = true * (1 + self.drift[reference]) + self.offset[reference]
                got = at - START + row["offset_ns"] + (row["drift_ppm"] or 0.0) / 1e6 * (at - row["anchor"])
                worst = max(worst, abs(got - wanted))
            found[rank] = worst
        return found


def changed(tables: JobTables, change: Callable[[pl.DataFrame], pl.DataFrame]) -> JobTables:
    """Return the tables with other collectives."""
    return replace(tables, collectives=change(tables.collectives))


def data_parallel(world: int, steps: int = 40, each: int = 4, **options: Any) -> Simulated:
    """All ranks in one group, ``each`` collectives of different sizes a step."""
    job = Simulated(world, **options)
    for _ in range(steps):
        for size in range(each):
            job.collective(range(world), size=1 << 20 + size)
        job.next_step()
    return job


def pipeline(world: int, steps: int = 40, *, eager: bool = False, **options: Any) -> Simulated:
    """Ranks that only pass activations forward and gradients back."""
    job = Simulated(world, **options)
    for _ in range(steps):
        for rank in range(world - 1):
            job.transfer(rank, rank + 1, eager=eager, late=job.chance.choice([0.0, 2.0 * MS]))
        for rank in range(world - 1, 0, -1):
            job.transfer(rank, rank - 1, eager=eager, late=job.chance.choice([0.0, 2.0 * MS]))
        job.next_step()
    return job


def three_dimensions(tp: int, pp: int, dp: int, steps: int = 20, **options: Any) -> Simulated:
    """Tensor, pipeline and data parallel groups: ``rank = (data × pp + stage) × tp + tensor``."""
    job = Simulated(tp * pp * dp, **options)

    def rank(data: int, stage: int, tensor: int) -> int:
        return (data * pp + stage) * tp + tensor

    for _ in range(steps):
        begin = job.time
        for data in range(dp):
            job.time = begin
            for stage in range(pp):
                members = [rank(data, stage, tensor) for tensor in range(tp)]
                for _ in range(3 if tp > 1 else 0):
                    job.collective(members, "allreduce", 1 << 16, ms=0.1)
                if stage + 1 < pp:
                    for tensor in range(tp):
                        job.transfer(rank(data, stage, tensor), rank(data, stage + 1, tensor))
                        job.transfer(rank(data, stage + 1, tensor), rank(data, stage, tensor))
        for stage in range(pp):
            for tensor in range(tp):
                members = [rank(data, stage, tensor) for data in range(dp)]
                for operation in ("reduce_scatter", "allgather") if dp > 1 else ():
                    job.collective(members, operation, 1 << 22)
        job.next_step()
    return job
