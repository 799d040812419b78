"""What the compiler made of the programs that ran: each instruction, and the parts of those that it fused."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.operators.roofline import runs
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables

#: Names for values that are there; they do nothing.
_NAMES = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all")


def instruction_details(tables: Tables) -> pl.DataFrame:
    """Return one row per instruction of the programs that ran; each is followed by the parts it consists of.

    Those with most time come first, over all devices. Without a program that ran, all programs are listed.
    """
    texts = [pl.col(name).cast(pl.String) for name in ("program", "name", "opcode", "scope", "phase")]
    rows = tables["instructions"].with_columns(texts).collect()
    ran = runs(tables).group_by("instruction").agg(pl.col("count", "time").sum())
    rows = rows.join(ran, left_on="id", right_on="instruction", how="left", maintain_order="left")
    if len(ran):
        used = rows.filter(pl.col("time").is_not_null()).select("program_id").unique()
        rows = rows.join(used, on="program_id", how="semi", maintain_order="left")
    rows = _in_order(rows)
    named = rows.select(pl.col("id").alias("parent"), pl.col("name").alias("part_of"))
    rows = rows.join(named, on="parent", how="left", maintain_order="left").filter(~pl.col("opcode").is_in(_NAMES))
    return rows.select(titled({
        "Program": "program", "Program ID": "program_id", "Name": "name", "Part Of": "part_of", "Opcode": "opcode",
        "Scope": "scope", "Phase": "phase", "Source": "source", "Count": "count", "Total Time(us)": us("time"),
        "FLOPs": "flops", "Transcendentals": "transcendentals", "Bytes": "bytes", "Output Shape": "shape",
        "Input Shapes": "operands",
    }))  # fmt: skip


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Order instructions by falling time, and behind each, in the program's order, what it contains."""
    inside: dict[int | None, list[int]] = {}
    row_of = {number: row for row, number in enumerate(rows["id"].to_list())}
    for row, parent in enumerate(rows["parent"].to_list()):
        inside.setdefault(parent if parent in row_of else None, []).append(row)
    time = rows["time"].fill_null(0).to_list()
    numbers, order = rows["id"].to_list(), []
    waiting = sorted(inside.get(None, []), key=lambda row: time[row])
    while waiting:
        row = waiting.pop()
        order.append(row)
        waiting += reversed(inside.pop(numbers[row], []))
    beside = set(range(len(rows))) - set(order)  # of a damaged program, what is part of itself
    return rows[[*order, *sorted(beside)]]
