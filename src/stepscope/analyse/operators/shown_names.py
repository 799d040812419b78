"""What operators and kernels are called where people read them: short names, of compiled programs scope and phase."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, reduce
from typing import Any

import polars as pl

from stepscope.analyse.operators.roofline import CONTAINERS
from stepscope.trace.tables import Tables, collected, has_rows

#: What names contain and nobody needs, with what stands there instead; in this order.
_SHORTER: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\bvoid |\bat::native::|\(anonymous namespace\)::", ""),  # C++ kernels of PyTorch
        (r"^autograd::engine::evaluate_function: (.*)", r"\1 (engine)"),
        (r"^(\w+) (?:dygraph|static)$", r"\1"),  # Paddle
        (r"^(?:Global_)?GradNodeAccumulation$", "gradient accumulation"),
        (r"^(?:Global_)?(\w+?)GradNode(?:Final)?$", r"\1 backward"),
        (r"^(?:[^/]+/)+([^/]+?)-op\d+$", r"\1"),  # MindSpore: Default/network/fc1/MatMul-op12
        (r"\.kd$", ""),  # code objects of AMD
    )
)
#: Parts of a scope that JAX adds: calls of compiled functions, control flow.
_ADDED = re.compile(
    r"p?jit\(.*\)|while|body|cond|closed_call|core_call|checkpoint|remat|rematted_computation|shard_map|scan"
    r"|branch_\d+_fun|custom_[jv]vp_call(?:_jaxpr)?|"
)
#: A transformed function, such as ``transpose(jvp(loss))``, of which only the innermost name counts.
_TRANSFORMED = re.compile(r"(?:transpose|jvp|vmap|checkpoint|remat|custom_[jv]vp)\((.*)\)")
_PHASES = ("forward", "backward", "optimizer")


@lru_cache(1 << 12)
def readable(name: str) -> str:
    """Return a name of an operator or kernel without what only its framework's own code adds."""
    shorter = reduce(lambda text, rule: rule[0].sub(rule[1], text), _SHORTER, name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", shorter).lower() if shorter.endswith(" backward") else shorter


def scoped(scope: str | None, phase: str | None, otherwise: str) -> str:
    """Return what to call an instruction of a compiled program: ``layer3 backward``.

    Args:
        scope: Its place in the source program, such as ``jit(step)/transpose(jvp(loss))/layer3/dot_general``.
        phase: Its phase.
        otherwise: What to call it without a scope.
    """
    *around, primitive = (scope or "").partition(";")[0].split("/")
    if not around:
        return otherwise
    names = modules_in(scope)
    if not names and phase == "optimizer":
        return phase
    place = "/".join(names) or primitive
    return f"{place} {phase}" if phase in _PHASES else place


def modules_in(scope: str | None) -> list[str]:
    """Return the names in a scope, outermost first, without those that JAX adds and the primitive at its end.

    Of several, which the compiler joined by `;`, the first counts.
    """
    names: list[tuple[str, bool]] = []
    for part in (scope or "").partition(";")[0].split("/")[:-1]:
        name = part
        while inner := _TRANSFORMED.fullmatch(name):
            name = inner[1]
        if not _ADDED.fullmatch(name):
            names.append((name, name != part))
    if len(names) > 1 and names[0][1]:
        del names[0]  # the function that is differentiated as a whole
    return [name for name, _ in names]


def most_time(
    tables: Tables, work: pl.DataFrame, most: int
) -> list[tuple[tuple[str, str], tuple[int, int, float | None]]]:
    """Return the names with most time: name and kind, and their time (ns), count, and flops, None if unknown.

    Args:
        tables: The tables of the rank.
        work: Columns id, name, kind and time, as :func:`~.op_statistic.host_work` and ``device_work`` return.
        most: Number of names.
    """
    merged: dict[tuple[str, str], tuple[int, int, float | None]] = {}
    for name, kind, time, count, flops in _named(tables, work):
        known, calls, done = merged.get((name, kind), (0, 0, 0.0))
        merged[name, kind] = known + time, calls + count, None if done is None or flops is None else done + flops
    return sorted(merged.items(), key=lambda one: (-one[1][0], one[0]))[:most]


def time_by_step(tables: Tables, work: pl.DataFrame) -> dict[tuple[str, str], dict[int, int]]:
    """Return by name and kind, as :func:`most_time` has them, the time (ns) in each step, without work outside steps.

    Args:
        tables: The tables of the rank.
        work: As for :func:`most_time`, with a column step.
    """
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, kind, time, _, _, step in _named(tables, work.filter(pl.col("step").is_not_null()), "step"):
        of_name = found.setdefault((name, kind), {})
        of_name[step] = of_name.get(step, 0) + time
    return found


def _named(tables: Tables, work: pl.DataFrame, *by: str) -> Iterable[tuple[Any, ...]]:
    """Yield name, kind, time, count and flops of work, by further columns, which come last; names may occur again."""
    rows = work.lazy().select("id", "name", "kind", "time", *by)
    if has_rows(tables, "instructions"):
        yield from _of_instructions(tables, rows, *by)
        return
    sums = rows.group_by("name", "kind", *by).agg(pl.col("time").sum(), pl.len()).pipe(collected, tables)
    for name, kind, *others, time, count in sums.iter_rows():
        yield readable(name), kind, time, count, None, *others


def _of_instructions(tables: Tables, rows: pl.LazyFrame, *by: str) -> Iterable[tuple[Any, ...]]:
    """Name work by the scope and phase of its instruction, and add the operations of all runs.

    A run of an instruction may be several kernels: its operations count once.
    """
    ran = (
        tables["operators"]
        .select(pl.col("span").alias("id"), "instruction")
        .filter(pl.col("instruction").is_not_null())
    )
    of = rows.join(ran, on="id", how="left").group_by("instruction", "name", "kind", *by)
    each = of.agg(pl.col("time").sum(), count=pl.len())
    runs = pl.when(pl.col("count").rank("ordinal", descending=True).over("instruction") == 1).then("count").otherwise(0)
    known = tables["instructions"].select(
        "id", "opcode", "scope", "phase", pl.col("flops").cast(pl.Float64).alias("each")
    )
    found = each.with_columns(runs=runs).join(known, left_on="instruction", right_on="id", how="left").collect()
    scopes, phases, names = (found[name].cast(pl.String).to_list() for name in ("scope", "phase", "name"))
    shown = [scoped(scope, phase, readable(name)) for scope, phase, name in zip(scopes, phases, names, strict=True)]
    container = pl.col("opcode").cast(pl.String).is_in(CONTAINERS)
    flops = pl.when(container).then(0.0).otherwise(pl.col("each") * pl.col("runs"))
    return (
        found.select(pl.Series("name", shown, pl.String), "kind", "time", "count", flops=flops)
        .select("name", "kind", "time", "count", "flops", *(found[column] for column in by))
        .iter_rows()
    )
