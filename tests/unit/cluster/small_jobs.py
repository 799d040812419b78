"""Jobs of a few ranks, computed one operation after the other: their tables, meetings and arrivals, without files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables, conform


class Work(NamedTuple):
    """The rank computes."""

    ns: float


class Collective(NamedTuple):
    """The rank arrives at a collective of a group; it goes on at once if it is asynchronous."""

    group: int
    operation: str = "allreduce"
    transit: float = 1e6
    bytes: int = 1 << 20
    asynchronous: bool = False


class Send(NamedTuple):
    """The rank sends to another, and goes on."""

    peer: int
    transit: float = 1e5


class Recv(NamedTuple):
    """The rank receives from another."""

    peer: int


class Wait(NamedTuple):
    """The rank waits for all that it has started."""


class Step(NamedTuple):
    """A step ends."""


Program = Sequence[Work | Collective | Send | Recv | Wait | Step]


@dataclass
class SmallJob:
    """A job that ran: what it recorded, and how long its steps took.

    Attributes:
        programs: What each rank does.
        groups: The ranks of each group.
    """

    programs: dict[int, Program]
    groups: dict[int, list[int]]
    rows: list[dict[str, object]] = field(default_factory=list)
    steps: list[dict[str, object]] = field(default_factory=list)
    offsets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._arrived: dict[object, dict[int, float]] = defaultdict(dict)
        self._left: dict[object, float] = {}
        ranks = {rank: self._run(rank, program) for rank, program in self.programs.items()}
        while ranks:
            for rank in list(ranks):
                if next(ranks[rank], None) is None:
                    del ranks[rank]

    def _run(self, rank: int, program: Program) -> Iterator[bool]:
        now, begin, step = 0.0, 0.0, 0
        counts: dict[object, int] = defaultdict(int)
        last: dict[object, object] = {}
        worked: list[tuple[float, float]] = []
        started: list[tuple[object, dict[str, object], float]] = []
        for one in program:
            if isinstance(one, Work):
                worked.append((now, now + one.ns))
                now += one.ns
            elif isinstance(one, Step):
                work = round(sum(high - low for low, high in worked if low >= begin))
                dur = round(now) - round(begin)
                part = {"computing": work, "communication": dur - work}
                self.steps.append({"rank": rank, "step": step, "ts": round(begin), "dur": dur, **part})
                begin, step = now, step + 1
            elif isinstance(one, Wait):
                for key, _, _ in started:
                    while key not in self._left:
                        yield True
                    now = max(now, self._left[key])
            else:
                pair = isinstance(one, Send | Recv)
                channel = self._channel(rank, one)
                key = (channel, counts[channel])
                counts[channel] += 1
                while last.get(channel, key) != key and last[channel] not in self._left:
                    yield True
                arrival = max(now, self._left.get(last.get(channel), 0.0))
                last[channel] = key
                members = list(channel) if pair else self.groups[one.group]
                self._arrived[key][rank] = arrival
                if isinstance(one, Send | Collective):
                    self._left.setdefault((key, "transit"), one.transit)
                row = self._row(rank, one, step, counts[channel] - 1)
                started.append((key, row, arrival))
                self._meet(key, members)
                if isinstance(one, Recv) or (isinstance(one, Collective) and not one.asynchronous):
                    while key not in self._left:
                        yield True
                    now = max(now, self._left[key])
        for key, row, arrival in started:
            while key not in self._left:
                yield True
            end = self._left[key]
            hidden = sum(max(0.0, min(end, high) - max(arrival, low)) for low, high in worked)
            row |= {"ts": round(arrival), "dur": round(end) - round(arrival), "exposed": round(end - arrival - hidden)}
            self.rows.append(row | {"key": key})

    def _meet(self, key: object, members: Sequence[int]) -> None:
        if len(self._arrived[key]) == len(members):
            self._left[key] = max(self._arrived[key].values()) + self._left[key, "transit"]

    def _channel(self, rank: int, one: Collective | Send | Recv) -> tuple[int, ...]:
        if isinstance(one, Collective):
            return (one.group, -1, -1)
        return (rank, one.peer) if isinstance(one, Send) else (one.peer, rank)

    def _row(self, rank: int, one: Collective | Send | Recv, step: int, sequence: int) -> dict[str, object]:
        row: dict[str, object] = {"rank": rank, "step": step, "sequence": sequence}
        if isinstance(one, Collective):
            return row | {"group": one.group, "operation": one.operation, "bytes_in": one.bytes, "bytes_out": one.bytes}
        source, destination = (rank, one.peer) if isinstance(one, Send) else (one.peer, rank)
        operation = type(one).__name__.lower()
        return row | {"operation": operation, "source": source, "destination": destination, "bytes_in": 1 << 16}

    @property
    def duration(self) -> float:
        """How long the job takes."""
        return max(row["ts"] + row["dur"] for row in self.steps)  # type: ignore[operator]

    @property
    def tables(self) -> JobTables:
        """Its tables, each rank by its own clock."""
        world = len(self.programs)
        ranks = pl.DataFrame(
            {"rank": list(self.programs), "directory": "", "world_size": world, "host": "a", "device": "cuda:0"}
        )
        groups = pl.DataFrame(
            {
                "id": list(self.groups),
                "ranks": list(self.groups.values()),
                "size": list(map(len, self.groups.values())),
            },
            schema_overrides={"id": pl.Int32, "ranks": pl.List(pl.Int64)},
        )
        groups = groups.with_columns(size=pl.col("ranks").list.len())
        rows = pl.DataFrame([{k: v for k, v in row.items() if k != "key"} for row in self.rows])
        return JobTables(
            ranks=conform("ranks", ranks),
            steps=conform("steps", self._own_clock(pl.DataFrame(self.steps))).sort("rank", "step"),
            collectives=conform("collectives", self._own_clock(rows)).sort("rank", "ts", maintain_order=True),
            groups=conform("groups", groups),
        )

    def _own_clock(self, frame: pl.DataFrame) -> pl.DataFrame:
        offset = pl.col("rank").replace_strict(self.offsets, default=0, return_dtype=pl.Int64)
        return frame.with_columns(pl.col("ts") - offset) if len(frame) else frame

    @property
    def meetings(self) -> pl.DataFrame:
        """Its collectives with the meeting that each belongs to."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(row["key"] for row in self.rows))}
        keys = pl.DataFrame(
            [
                {"rank": row["rank"], "ts": row["ts"], "dur": row["dur"], "operation": row["operation"],
                 "group": row.get("group"), "sequence": row["sequence"], "source": row.get("source"),
                 "destination": row.get("destination"), "meeting": numbers[row["key"]]}
                for row in self.rows
            ],
            schema_overrides={"rank": pl.Int32, "group": pl.Int32, "source": pl.Int64, "destination": pl.Int64},
        )  # fmt: skip
        on = ["rank", "group", "operation", "sequence", "source", "destination"]
        rows = self.tables.collectives.join(keys.select(*on, "meeting"), on=on, nulls_equal=True)
        members = pl.col("rank").n_unique().over("meeting")
        return rows.with_columns(members=members, complete=pl.lit(value=True))

    @property
    def arrivals(self) -> pl.DataFrame:
        """When each rank arrives at each meeting, on one clock."""
        offset = pl.col("rank").replace_strict(self.offsets, default=0, return_dtype=pl.Int64)
        rows = self.meetings.with_columns(arrival=pl.col("ts") + offset, end=pl.col("ts") + pl.col("dur") + offset)
        first, latest = pl.col("arrival").min().over("meeting"), pl.col("arrival").max().over("meeting")
        return rows.select(
            "meeting", "rank", "step", "group", "operation", "arrival", "end",
            bytes=pl.max_horizontal("bytes_in", "bytes_out"), lateness=pl.col("arrival") - first,
            wait=latest - pl.col("arrival"), transit=pl.col("end") - latest, last=pl.col("arrival") == latest,
            uncertainty=pl.lit(0, pl.Int64), reason=pl.lit(None, pl.String),
        )  # fmt: skip


def data_parallel(
    ranks: int, steps: int, work: Callable[[int, int], float], *, buckets: int = 4, transit: float = 2e6
) -> SmallJob:
    """Return a job that reduces its gradients in buckets while it computes: half of the work, then a part a bucket."""
    everyone = list(range(ranks))
    programs = {}
    for rank in everyone:
        program: list[Work | Collective | Send | Recv | Wait | Step] = []
        for step in range(steps):
            own = work(rank, step)
            program.append(Work(own / 2))
            for _ in range(buckets):
                program += [Work(own / 2 / buckets), Collective(0, transit=transit, asynchronous=True)]
            program += [Wait(), Step()]
        programs[rank] = program
    return SmallJob(programs, {0: everyone})


def pipeline(
    stages: int,
    replicas: int,
    steps: int,
    microbatches: int,
    forward: Callable[[int, int], float],
    transit: Callable[[int, int], float] = lambda _a, _b: 1e5,
) -> SmallJob:
    """Return a job with a pipeline (one forward, one backward); rank = stage · replicas + replica.

    Args:
        stages: Number of stages.
        replicas: Ranks of each.
        steps: Number of steps.
        microbatches: Of a step; at least ``stages``.
        forward: What a forward pass takes a rank, given rank and step; a backward pass takes twice that.
        transit: What a transfer takes from one rank to another.
    """
    programs = {}
    for rank in range(stages * replicas):
        stage = rank // replicas
        program: list[Work | Collective | Send | Recv | Wait | Step] = []
        for step in range(steps):
            for kind in _one_forward_one_backward(stage, stages, microbatches):
                before, after = (
                    (rank - replicas, rank + replicas) if kind == "f" else (rank + replicas, rank - replicas)
                )
                if 0 <= before < stages * replicas:
                    program.append(Recv(before))
                program.append(Work(forward(rank, step) * (1 if kind == "f" else 2)))
                if 0 <= after < stages * replicas:
                    program.append(Send(after, transit(rank, after)))
            program += [Collective(stage, transit=2e6), Step()]
        programs[rank] = program
    groups = {stage: list(range(stage * replicas, (stage + 1) * replicas)) for stage in range(stages)}
    return SmallJob(programs, groups)


def _one_forward_one_backward(stage: int, stages: int, microbatches: int) -> str:
    first = stages - stage - 1
    return "f" * first + "fb" * (microbatches - first) + "b" * first


def spread(share: float, seed: int = 0) -> Callable[[int, int], float]:
    """Return factors around 1, one for each rank and step."""

    def factor(rank: int, step: int) -> float:
        return float(np.exp(np.random.default_rng([seed, rank, step]).normal(0, share)))

    return factor
