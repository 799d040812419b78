"""The steps of a file: declared by ``StepTraceAnnotation``, else runs of the program that takes most of the time."""

from __future__ import annotations

import polars as pl

from stepscope.read.xplane.gathered_rows import Rows, united_runs
from stepscope.trace.tables import conform, empty


def steps(rows: Rows, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``steps``.

    Args:
        rows: What the file holds.
        operations: What :meth:`~stepscope.read.xplane.compiled_programs.Operations.table` returns.
    """
    declared = rows.tables.get("steps", [])
    if declared and (marks := pl.concat(declared)).height:
        return conform("steps", marks.sort("ts", "dur").with_columns(source=pl.lit("declared")))
    if "starts" in rows.tables:
        runs = _runs_on_device(pl.concat(rows.tables["starts"]), operations)
    else:
        runs = united_runs(rows.tables.get("runs", []))
    names = operations.select("program_id", "program").unique("program_id", keep="first")
    return _inferred(runs.join(names, on="program_id", how="left", nulls_equal=True))


def _inferred(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of the program that takes most of the time, each until the next begins; none if it ran once.

    A function is compiled again for inputs of another form or place: its programs have one name, and are one here.
    """
    totals = runs.group_by("program", maintain_order=True).agg(pl.col("total").sum(), pl.len())
    most = totals.sort("total", descending=True, maintain_order=True).head(1)
    if not most.height or most["len"][0] < 2:
        return empty("steps")
    chosen = (
        runs.join(most, on="program", how="semi", nulls_equal=True)
        .sort("ts", "end")
        .unique("ts", keep="last", maintain_order=True)
    )
    end = pl.col("ts").shift(-1).fill_null(pl.col("end").max())
    frame = chosen.select("ts", number=pl.int_range(pl.len()), dur=end - pl.col("ts"))
    return conform("steps", frame.with_columns(source=pl.lit("inferred")))


def _runs_on_device(starts: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of programs on the first device: kernels do not say which run they belong to.

    A run begins with the kernel that the first one began with.
    """
    numbered = (
        operations.select("program_id").with_row_index("operation").with_columns(pl.col("operation").cast(pl.Int32))
    )
    first = starts.filter(pl.col("device") == starts["device"].min()).join(numbered, on="operation", how="left")
    ordered = first.sort("ts", maintain_order=True)
    heads = ordered.group_by("program_id", maintain_order=True).agg(pl.col("operation", "place").first())
    head = pl.struct("operation", "place").is_in(heads.select(pl.struct("operation", "place")).to_series().implode())
    runs = ordered.with_columns(run=head.cast(pl.Int64).cum_sum().over("program_id"))
    return runs.group_by("program_id", "run", maintain_order=True).agg(
        pl.col("ts").min(), pl.col("end").max(), total=(pl.col("end") - pl.col("ts")).sum()
    )
