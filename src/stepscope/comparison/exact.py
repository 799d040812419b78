"""What needs no statistics: bytes, peak memory, compilations, and how the two programs and machines differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from stepscope.comparison.parts import steps_computed_on
from stepscope.trace.tables import Tables, columns_of, has_rows

if TYPE_CHECKING:
    from stepscope.run import RankRun

#: Facts of a manifest that make two runs differ before the program does: key of the answer → key of the manifest.
_FACTS = {"program": "worker", "host": "host", "python": "python", "ranks": "world_size", "stepscope": "stepscope"}
#: Options that change what a recorded step takes.
_OPTIONS = ("collector", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "sample")


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Most memory on one device, in bytes, in the runs of each side; None if unknown.

    Attributes:
        device: ``cpu``, ``cuda:0``, …
        what: ``allocated`` or ``reserved`` at its peak in the window; ``taken`` by the allocations of a median step.
        a: Of A: the largest of its runs.
        b: Of B.
        varies: Whether the runs of one side differ.
    """

    device: str
    what: str
    a: int | None
    b: int | None
    varies: bool = False


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of one run says exactly.

    Attributes:
        memory: Bytes by device and what they are.
        compilations: Compilations in the whole run; None if nobody watched.
        environment: Facts about program and machine.
        losses: What was dropped or repaired, and how often.
    """

    memory: dict[tuple[str, str], int]
    compilations: int | None
    environment: dict[str, str]
    losses: dict[str, int]


def exact_of(rank: RankRun) -> Exact:
    """Return what a rank says exactly."""
    tables = rank.tables
    lost = columns_of(tables, "losses", "what", "count", "severity").filter(
        pl.col("severity").cast(pl.String) != "info"
    )
    counted = lost.group_by(pl.col("what").cast(pl.String)).agg(pl.col("count").sum()).sort("what")
    return Exact(
        memory=_memory(tables),
        compilations=_compilations(rank),
        environment=_environment(rank),
        losses=dict(counted.iter_rows()),
    )


def _memory(tables: Tables) -> dict[tuple[str, str], int]:
    if not has_rows(tables, "allocations"):
        return {}
    device = pl.col("device").cast(pl.String)
    peaks = tables["allocations"].group_by(device).agg(pl.col("allocated", "reserved").max()).collect()
    found = {
        (name, what): value
        for name, *values in peaks.sort("device").iter_rows()
        for what, value in zip(("allocated", "reserved"), values, strict=True)
        if value
    }
    steps = columns_of(tables, "steps", "number", "ts", "dur").sort("ts")
    if steps.is_empty():
        return found
    taken = tables["allocations"].filter(pl.col("bytes") > 0).select("ts", "bytes", device).sort("ts")
    within = taken.join_asof(steps.lazy().rename({"ts": "begun"}), left_on="ts", right_on="begun")
    inside = within.filter(pl.col("ts") < pl.col("begun") + pl.col("dur"))
    sums = inside.group_by("device", "number").agg(pl.col("bytes").sum())
    each = sums.group_by("device").agg(pl.col("bytes").median()).sort("device").collect()
    return found | {(name, "taken"): int(amount) for name, amount in each.iter_rows()}


def _compilations(rank: RankRun) -> int | None:
    tables = rank.tables
    events = columns_of(tables, "run_events", "name")["name"].cast(pl.String)
    spans = tables["spans"].filter(pl.col("kind").cast(pl.String) == "compile").select(pl.len()).collect().item()
    watched = "compilations" in rank.manifest.get("collectors", {}) or len(events) > 0
    return max(int((events == "compile").sum()), int(spans)) if watched or spans else None


def _environment(rank: RankRun) -> dict[str, str]:
    manifest = rank.manifest
    found = {name: str(manifest[key]) for name, key in _FACTS.items() if manifest.get(key) not in (None, "")}
    for name, state in manifest.get("collectors", {}).items():
        if "version" in state:
            found[name] = str(state["version"])
    options = manifest.get("options", {})
    found |= {f"option {name}": str(options[name]) for name in _OPTIONS if name in options}
    if "format" in manifest:
        found["format"] = str(manifest["format"])
    return {**found, "device": " ".join(steps_computed_on(rank.tables)), "framework": rank.summary.framework}


def environment_of(runs: Sequence[Exact]) -> dict[str, str]:
    """Return the facts of one side; what differs between its runs is named with all values."""
    names = dict.fromkeys(name for run in runs for name in run.environment)
    return {
        name: " / ".join(dict.fromkeys(run.environment[name] for run in runs if name in run.environment))
        for name in names
    }


def memory_of(a: Sequence[Exact], b: Sequence[Exact]) -> list[MemoryUse]:
    """Return the memory of both sides, one row for each device and what it is."""
    rows = []
    for device, what in dict.fromkeys(key for run in (*a, *b) for key in run.memory):
        mine, theirs = ([run.memory[device, what] for run in runs if (device, what) in run.memory] for runs in (a, b))
        rows.append(
            MemoryUse(
                device=device,
                what=what,
                a=max(mine, default=None),
                b=max(theirs, default=None),
                varies=len(set(mine)) > 1 or len(set(theirs)) > 1,
            )
        )
    return rows


def losses_of(runs: Sequence[Exact]) -> dict[str, int]:
    """Return what the runs of one side lost together."""
    names = dict.fromkeys(name for run in runs for name in run.losses)
    return {name: sum(run.losses.get(name, 0) for run in runs) for name in names}
