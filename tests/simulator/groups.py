"""Which ranks communicate, under which names, over which links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tests.simulator.plans import Floats, Group
from tests.simulator.shapes import Shape

_MEGATRON = {
    "DP": "DATA_PARALLEL_GROUP",
    "TP": "TENSOR_MODEL_PARALLEL_GROUP",
    "PP": "PIPELINE_MODEL_PARALLEL_GROUP",
    "EP": "EXPERT_MODEL_PARALLEL_GROUP",
    "SHARD": "INTRA_PARTIAL_DATA_PARALLEL_GROUP",
    "REPLICA": "INTER_PARTIAL_DATA_PARALLEL_GROUP",
}


def rank_at(shape: Shape, tensor: int, data: int, stage: int) -> int:
    """Return the rank at a place of the grid: tensor parallel ranks are neighbours."""
    if shape.stages_first:
        return tensor + shape.tensor * (stage + shape.pipeline * data)
    return tensor + shape.tensor * (data + shape.data * stage)


def groups_of(shape: Shape) -> dict[str, list[Group]]:
    """Return the process groups of a job by kind, in the order in which the program makes them."""
    members: dict[str, list[tuple[int, ...]]] = {"WORLD": [tuple(range(shape.ranks))]}
    tensors, datas, stages = range(shape.tensor), range(shape.data), range(shape.pipeline)
    if shape.kind == "3d":
        members["DP"] = [tuple(rank_at(shape, t, d, s) for d in datas) for s in stages for t in tensors]
        members["TP"] = [tuple(rank_at(shape, t, d, s) for t in tensors) for s in stages for d in datas]
        members["PP"] = [tuple(rank_at(shape, t, d, s) for s in stages) for d in datas for t in tensors]
    if shape.hybrid:
        size = shape.ranks_per_host
        members["SHARD"] = [tuple(range(i, i + size)) for i in range(0, shape.ranks, size)]
        members["REPLICA"] = [tuple(range(i, shape.ranks, size)) for i in range(size)]
    if shape.kind == "moe":
        members["EP"] = [tuple(range(i, i + shape.experts)) for i in range(0, shape.ranks, shape.experts)]
    found: dict[str, list[Group]] = {}
    number = 0
    for kind, lists in members.items():
        found[kind] = []
        for ranks in lists:
            found[kind].append(Group(kind, str(number), _description(shape, kind), ranks))
            number += 1
    return found


def _description(shape: Shape, kind: str) -> str:
    if kind == "WORLD":
        return "default_pg"
    if shape.naming == "megatron":
        return _MEGATRON[kind]
    return f"mesh_{kind.lower()}" if shape.naming == "mesh" else "undefined"


def _share(operation: str, ranks: int) -> float:
    """Return what crosses the slowest link, of the bytes that a rank gives."""
    if operation in ("send", "broadcast"):
        return 1.0
    if operation == "_allgather_base":
        return ranks - 1.0
    return (2 if operation == "allreduce" else 1) * (ranks - 1) / ranks


@dataclass(frozen=True)
class Network:
    """How long communication takes once everyone has arrived.

    Attributes:
        within: Bytes per nanosecond within a host.
        between: Bytes per nanosecond between hosts.
    """

    within: float
    between: float
    latency_within: float
    latency_between: float

    @classmethod
    def random(cls, shape: Shape, rng: np.random.Generator) -> Network:
        """Return a network as clusters have them; without devices, one of gloo."""
        if not shape.device:
            return cls(float(rng.uniform(1, 4)), float(rng.uniform(0.5, 2.5)), 60_000.0, 150_000.0)
        between = float(rng.choice([12.0, 25.0, 50.0]) * rng.uniform(0.8, 0.95))
        return cls(float(rng.uniform(100, 350)), between, float(rng.uniform(8e3, 15e3)), float(rng.uniform(2e4, 5e4)))

    def speed(self, shape: Shape, ranks: tuple[int, ...]) -> tuple[float, float]:
        """Return bytes per nanosecond between ranks, and the latency."""
        one_host = len({shape.host_of(rank) for rank in ranks}) == 1
        return (self.within, self.latency_within) if one_host else (self.between, self.latency_between)

    def transit(self, shape: Shape, operation: str, members: list[tuple[int, ...]], size: float) -> Floats:
        """Return the time from the last arrival to the end in each group."""
        rates = [(*self.speed(shape, ranks), _share(operation, len(ranks))) for ranks in members]
        return np.array([latency + share * size / rate for rate, latency, share in rates])

    def bytes_for(self, shape: Shape, operation: str, members: Iterable[tuple[int, ...]], duration: float) -> float:
        """Return what each rank can give in a time, in the slowest of some groups."""
        found = []
        for ranks in members:
            rate, latency = self.speed(shape, ranks)
            found.append(max(duration - latency, 0.1 * duration) * rate / _share(operation, len(ranks)))
        return min(found)
