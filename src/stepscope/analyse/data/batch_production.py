"""How long the batches of each data set take to make, which stage of it is the bottleneck, and the workers needed."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import numpy as np
import polars as pl

from stepscope.trace.tables import Tables, columns_of, facts

_SCHEMA = {
    "Dataset": pl.String, "Batches": pl.Int64, "Batches/Step": pl.Float64, "Processes": pl.Int64,
    "Samples Computing(us)": pl.Float64, "Samples Waiting(us)": pl.Float64, "Collation Computing(us)": pl.Float64,
    "Collation Waiting(us)": pl.Float64, "Bottleneck": pl.String, "Production/Step(us)": pl.Float64,
    "Rest of Step(us)": pl.Float64, "Workers Needed": pl.Int64, "Cores": pl.Int64,
}  # fmt: skip
_STAGES = tuple(name.removesuffix("(us)") for name in _SCHEMA if name.endswith("ing(us)"))


def batch_production(tables: Tables) -> pl.DataFrame:
    """Return one row per data set, the one that takes longest first: mean times in µs, of batches and of steps.

    A wait is the median of its batches, so that one whose process lost its core does not count.
    """
    batches = columns_of(
        tables, "batches", "dataset", "process", "sample_dur", "sample_cpu", "collate_dur", "collate_cpu"
    ).with_columns(pl.col("dataset").cast(pl.String))
    steps = columns_of(tables, "run_steps", "dur", "delay", "data_wait").filter(pl.col("dur") > 0)
    rest, cores, rows = _rest(steps), _cores(tables), []
    for dataset, of in sorted(batches.group_by("dataset"), key=lambda group: str(group[0][0])):
        stages = [*_stage(of["sample_dur"], of["sample_cpu"]), *_stage(of["collate_dur"], of["collate_cpu"])]
        made = sum(stages)
        a_step = len(of) / len(steps) if len(steps) else None
        each = None if a_step is None else a_step * made
        on_core = (stages[0] + stages[2]) / made if made else 0.0
        needed = None if each is None or rest is None else workers_needed(each, rest, on_core, cores)
        shown = [round(time / 1000, 3) for time in stages]
        rows.append(
            (
                dataset[0], len(of), None if a_step is None else round(a_step, 3), of["process"].n_unique(), *shown,
                _STAGES[int(np.argmax(stages))], None if each is None else round(each / 1000, 3),
                None if rest is None else round(rest / 1000, 3), needed, cores,
            )
        )  # fmt: skip
    return pl.DataFrame(rows, _SCHEMA, orient="row").sort("Production/Step(us)", descending=True, maintain_order=True)


def workers_needed(made: float, rest: float, on_core: float, cores: int | None, least: int = 1) -> int:
    """Return how many workers make batches as fast as the rest of the step uses them.

    Workers that compute all the time have the cores that the training leaves; those that wait share one.

    Args:
        made: Time that the batches of a step take to make, all workers together, ns.
        rest: The step without its wait for batches, ns.
        on_core: Part of ``made`` that is spent on a core.
        cores: Cores that the process may use; None if unknown.
        least: Fewest workers.
    """
    needed = max(least, math.ceil(made / max(rest, 1.0)))
    return needed if cores is None else max(least, min(needed, int(max(cores - 1, 1) / max(on_core, 1e-3))))


def _stage(dur: pl.Series, cpu: pl.Series) -> tuple[float, float]:
    """Return what a batch computes and waits in a stage, ns."""
    return float(cpu.to_numpy().mean()), float(np.median((dur - cpu).clip(0).to_numpy()))


def _rest(steps: pl.DataFrame) -> float | None:
    """Return the mean step without its wait for batches and for a core, ns; None if the waits are unknown."""
    known = steps.drop_nulls("data_wait")
    if known.is_empty():
        return None
    return float((known["dur"] - known["data_wait"] - known["delay"].fill_null(0)).clip(0).to_numpy().mean())


def _cores(tables: Tables) -> int | None:
    """Return the cores that the process may use, by affinity and control groups; None if unknown."""
    with suppress(ValueError, TypeError, AttributeError):
        machine = json.loads(facts(tables)["machine"]) if "machine" in facts(tables) else {}
        allowed = [number for number in (machine.get("cores"), machine.get("cpu_quota")) if number]
        return max(math.floor(min(allowed)), 1) if allowed else None
    return None
