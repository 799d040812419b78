"""Tables of jobs in lockstep, made by hand: what each rank takes itself, and the wait for the slowest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables, conform

MS = 1_000_000
#: What a step consists of, ms: operators, and the other parts.
OPERATORS = {"aten::mm": 40.0, "aten::add": 10.0, "aten::relu": 10.0, "aten::layer_norm": 8.0, "aten::softmax": 6.0}
PARTS = {"data_wait": 2.0, "host_only": 4.0, "idle": 2.0, "garbage": 0.0, "delay": 0.1}
TRANSIT = 10.0

#: Rank, step and what is there in ms (operators and parts) → the same with a fault.
Fault = Callable[[int, int, dict[str, float]], None]


def healthy(rank: int, step: int, work: dict[str, float]) -> None:
    """Change nothing."""


def job_tables(
    fault: Fault = healthy,
    *,
    ranks: int = 8,
    steps: int = 10,
    spread: float = 0.01,
    device: str = "cuda:0",
    seed: int = 0,
) -> JobTables:
    """Return the tables of a job; ``spread`` is how much ranks differ, as a standard deviation."""
    rng = np.random.default_rng(seed)
    speed = 1 + spread * rng.standard_normal(ranks)
    took: dict[tuple[int, int], dict[str, float]] = {}
    for rank in range(ranks):
        for step in range(steps):
            work = {name: value * speed[rank] * rng.normal(1, 0.01) for name, value in OPERATORS.items()}
            work |= {name: value * rng.normal(1, 0.1) for name, value in PARTS.items()}
            fault(rank, step, work)
            took[rank, step] = work
    rows: dict[str, list[dict[str, Any]]] = {"steps": [], "operators": [], "ranks": []}
    for step in range(steps):
        slowest = max(_own(took[rank, step]) for rank in range(ranks))
        for rank in range(ranks):
            work = took[rank, step]
            computing = sum(work[name] for name in OPERATORS)
            rows["steps"].append(
                {
                    "rank": rank,
                    "step": step,
                    "ts": step * 200 * MS,
                    "dur": _ns(slowest + TRANSIT),
                    "communication": _ns(slowest - _own(work) + TRANSIT),
                    "computing": _ns(computing),
                    "copy": 0,
                    "sync": 0,
                    **{name: _ns(work[name]) for name in PARTS},
                }
            )
            for name in OPERATORS:
                kind = "operator" if device == "cpu" else "kernel"
                total = {
                    "kind": kind,
                    "name": name,
                    "module": None,
                    "phase": "forward",
                    "count": 4,
                    "total": _ns(work[name]),
                }
                rows["operators"].append({"rank": rank, "step": step, **total})
    for rank in range(ranks):
        rows["ranks"].append(
            {
                "rank": rank,
                "directory": f"rank{rank}",
                "world_size": ranks,
                "host": f"node{rank // 4}",
                "device": device,
            }
            | {"framework": "torch", "code": "same", "end": steps * 200 * MS}
        )
    return JobTables(**{name: conform(name, pl.DataFrame(found)) for name, found in rows.items()})


def _own(work: dict[str, float]) -> float:
    return sum(work[name] for name in (*OPERATORS, "data_wait", "host_only", "idle"))


def _ns(ms: float) -> int:
    return round(ms * MS)
