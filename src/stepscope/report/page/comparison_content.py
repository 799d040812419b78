"""What the page of a comparison shows: everything of its JSON, and its tables; ``page/src/model.ts`` has the names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.analyse.quantities import count_text
from stepscope.comparison.comparison import TURNS, Comparison, Side
from stepscope.comparison.gates import Outcome
from stepscope.comparison.levels import RunLevel
from stepscope.comparison.wording import headline, promise
from stepscope.report.page.content import VERSION
from stepscope.trace.losses import CATALOGUE

#: Columns of changes, which are shown with their sign.
_SIGNED = ("change_ns", "low_ns", "high_ns", "errors", "change (%)")
#: Columns of the parts that the page shows first.
_FIRST = ("name", "a_ns", "b_ns", "change_ns", "low_ns", "high_ns", "sure", "calls_a", "calls_b")
#: Pages: name, title, tables, and why a comparison has none.
_PAGES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("overview", "What changed", (), ""),
    ("steps", "Steps of both", ("runs", "step_quantiles"), "no step was timed"),
    ("operators", "Operators", ("parts", "phases", "modules"), "no operator can be compared"),
    ("exact", "Exact differences", ("calls", "shapes", "memory", "compilations"), "nothing differs exactly"),
    ("losses", "The two sides", ("sides", "lost", "limits"), ""),
)


def comparison_content(found: Comparison, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the content of a comparison's page; its keys that a run's page also has mean the same."""
    names = [_named(side) for side in (found.a, found.b)]
    results = {name: table for name, table in _tables(found, outcomes, names) if table["rows"]}
    pages = [
        {"name": name, "title": title, "results": there, "absent": absent if absent and not there else ""}
        for name, title, tables, absent in _PAGES
        for there in [[table for table in tables if table in results]]
    ]
    facts = {name: found.a.environment.get(name, "") for name in ("framework", "device")}
    return {
        "version": VERSION,
        "title": " → ".join(names),
        "path": " → ".join(", ".join(side.runs) for side in (found.a, found.b)),
        "facts": [*((name, value) for name, value in facts.items() if value), ("design", _design(found))],
        "rank": 0,
        "ranks": [0],
        "losses": [
            {"what": what, "count": count, "severity": CATALOGUE.get(what, ("data_loss", ""))[0], "source": side}
            for side, lost in zip("AB", found.losses, strict=True)
            for what, count in lost.items()
        ],
        "pages": pages,
        "results": results,
        "verdict": headline(found),
        "sides": names,
        "promise": promise(found.prediction) if found.prediction is not None else "",
        "comparison": found.to_dict(outcomes),
    }


def _named(side: Side) -> str:
    return " ".join(filter(None, (side.name, side.revision)))


def _design(found: Comparison) -> str:
    runs = found.step.runs if found.step is not None else (len(found.a.runs), len(found.b.runs))
    if found.design == TURNS:
        return f"{count_text(runs[0], 'pair')} in turns"
    return f"{runs[0]} and {count_text(runs[1], 'run')}"


def _tables(
    found: Comparison, outcomes: Sequence[Outcome], names: Sequence[str]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield each table by its name; without rows where there is nothing to say."""
    told = found.to_dict(outcomes)
    yield "runs", _table("one row a run: the evidence for the step", _runs(found, names))
    yield "step_quantiles", _table("so many of the steps took no longer", _quantiles(found))
    parts = found.table().select(*_FIRST, pl.exclude(_FIRST)).to_dicts()
    yield "parts", _table("one row a part of the step; own change: beyond what changed all parts alike", parts)
    for name in ("phases", "modules"):
        yield name, _table("time a step, and the own change", told[name])
    yield "calls", _table("calls a step that differ, or vary", told["counts"])
    shapes = [{"name": one["name"], "a": "; ".join(one["a"]), "b": "; ".join(one["b"])} for one in told["shapes"]]
    yield "shapes", _table("up to three distinct shapes of each side", shapes)
    yield "memory", _table("most memory, and what a median step takes", _memory(found))
    made = found.compilations
    compiled = [{"a": made[0], "b": made[1]}] if made[0] != made[1] else []
    yield "compilations", _table("in the whole run", compiled)
    yield "sides", _table("facts of program and machine", _facts(found))
    lost = dict.fromkeys((*found.losses[0], *found.losses[1]))
    rows = [{"what": what, "a": found.losses[0].get(what, 0), "b": found.losses[1].get(what, 0)} for what in lost]
    yield "lost", _table("what the recordings lost or repaired", rows)
    yield "limits", _table("what came of the limits", told["gates"])


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: list[dict[str, Any]] = [
        {"name": name, "values": [row[name] for row in rows], **({"signed": True} if name in _SIGNED else {})}
        for name in (rows[0] if rows else ())
    ]
    known = [column for column in columns if any(value is not None for value in column["values"])]
    return {"title": title, "columns": known, "rows": len(rows), "of": len(rows)}


def _each(found: Comparison) -> Iterable[tuple[int, int, RunLevel]]:
    """Yield side, place and level of each run."""
    for side, levels in enumerate(found.levels):
        for place, level in enumerate(levels):
            yield side, place, level


def _runs(found: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    runs = (found.a.runs, found.b.runs)
    return [
        {
            "side": "AB"[side],
            "run": runs[side][place] if place < len(runs[side]) else f"{names[side]}, pair {place + 1}",
            "level_ns": math.exp(level.level),
            "mean_ns": math.exp(level.mean),
            "steps": level.steps,
            "waited for a core (%)": None if level.delay is None else 100 * level.delay,
            "page faults a step": level.faults,
            "long steps": level.stalls,
            "of the recorded steps": level.recorded,
        }
        for side, place, level in _each(found)
    ]


def _quantiles(found: Comparison) -> list[dict[str, Any]]:
    runs = [(f"{'AB'[side]} {place + 1}_ns", level.quantiles_ns) for side, place, level in _each(found)]
    runs = [(name, quantiles) for name, quantiles in runs if quantiles]
    return [
        {"steps (%)": percent, **{name: quantiles[percent] for name, quantiles in runs}}
        for percent in (range(101) if runs else ())
    ]


def _memory(found: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "device": row.device,
            "what": row.what,
            "a (bytes)": row.a,
            "b (bytes)": row.b,
            "change (%)": 100 * (row.b / row.a - 1) if row.a and row.b is not None else None,
            "varies between runs": row.varies,
        }
        for row in found.memory
    ]


def _facts(found: Comparison) -> list[dict[str, Any]]:
    a, b = ({"name": _named(side), "runs": ", ".join(side.runs), **side.environment} for side in (found.a, found.b))
    rows = ((fact, a.get(fact), b.get(fact)) for fact in dict.fromkeys((*a, *b)))
    told = [{"fact": fact, "a": mine, "b": theirs, "same": mine == theirs} for fact, mine, theirs in rows]
    return sorted(told, key=lambda row: bool(row["same"]))
