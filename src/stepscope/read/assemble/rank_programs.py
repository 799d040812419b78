"""Compiled programs of several parts → one table of instructions, in which every program stands once.

Each window of a recording brings the programs along that ran in it; most are the same ones again.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.trace.tables import conform, empty

#: What an instruction is known by: a program's number is unique in its process, a name within its program.
_SAME = ("program", "program_id", "computation", "name", "opcode", "shape", "place")


def merged(parts: Sequence[dict[str, pl.DataFrame]]) -> tuple[pl.DataFrame, list[pl.Series | None]]:
    """Put the instructions of all parts together, of their tables ``instructions`` and ``operators``.

    Returns:
        The table ``instructions``; for each part the column ``operators.instruction``, with the numbers in that table,
        or None without instructions.
    """
    if not any(part["instructions"].height for part in parts):
        return empty("instructions"), [None for _ in parts]
    frames, firsts, first = [], [], 0
    for part in parts:
        frame = conform("instructions", part["instructions"])
        # How many instructions before each have the same name: damaged ones may have lost theirs.
        place = pl.int_range(pl.len()).over("program", "program_id", "computation", "name")
        frames.append(frame.with_columns(pl.col("id") + first, pl.col("parent") + first, place=place))
        firsts.append(first)
        first += int(frame["id"].max() or 0) + 1 if frame.height else 0  # type: ignore[arg-type]
    together = pl.concat(frames).with_columns(kept=pl.col("id").first().over(_SAME))
    numbers = together.select("id", "kept")
    once = together.filter(pl.col("id") == pl.col("kept")).drop("place", "kept")
    once = once.with_columns(_renumbered(once["parent"], numbers))
    return once, [_renumbered(_instruction(part) + first, numbers) for part, first in zip(parts, firsts, strict=True)]


def _instruction(part: dict[str, pl.DataFrame]) -> pl.Series:
    operators = part["operators"]
    if "instruction" in operators.columns:
        return operators["instruction"].cast(pl.Int64)
    return pl.Series("instruction", [None], dtype=pl.Int64).new_from_index(0, operators.height)


def _renumbered(values: pl.Series, numbers: pl.DataFrame) -> pl.Series:
    """Return the number that is kept for each number; null for one that is not there."""
    name = values.name
    asked = values.rename("id").to_frame()
    return asked.join(numbers, on="id", how="left", maintain_order="left")["kept"].rename(name)
