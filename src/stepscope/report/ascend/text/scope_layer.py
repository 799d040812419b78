"""The lanes *Scope Layer*: the cells that the work belongs to, one lane for each depth."""

from __future__ import annotations

import polars as pl

from stepscope.trace.tables import Tables


def scopes(pieces: pl.DataFrame, tables: Tables) -> pl.DataFrame:
    """Return the bars of the lanes: depth (from 0), name, ts and dur in ns.

    Neighbouring pieces of work in one cell make one bar, with the gaps between them, as MindSpore draws it.

    Args:
        pieces: Pieces of work that compute, in order of start: columns id, operator, kind, ts, dur.
        tables: Tables of the rank; ``operators.module`` is the path of cells.
    """
    owner = pl.when(pl.col("kind") == "operator").then("id").otherwise("operator").alias("span")
    modules = tables["operators"].select("span", pl.col("module").cast(pl.String).str.split("/")).collect()
    rows = pieces.select(owner, "ts", (pl.col("ts") + pl.col("dur")).alias("end"))
    rows = rows.join(modules, on="span", how="left", maintain_order="left")
    deepest = rows["module"].list.len().max()
    bars = [_bars(rows, depth) for depth in range(deepest if isinstance(deepest, int) else 0)]
    nothing = pl.DataFrame(schema={"depth": pl.Int64, "name": pl.String, "ts": pl.Int64, "dur": pl.Int64})
    return pl.concat([nothing, *bars])


def _bars(rows: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Return the bars of one depth: runs of pieces that lie in the same cell."""
    path = pl.when(pl.col("module").list.len() > depth).then(pl.col("module").list.head(depth + 1).list.join("/"))
    runs = rows.with_columns(path.alias("path")).with_columns(pl.col("path").rle_id().alias("run")).drop_nulls("path")
    bars = runs.group_by("run", maintain_order=True).agg(
        pl.col("module").list.get(depth).first().alias("name"), pl.col("ts").first(), pl.col("end").max()
    )
    return bars.select(
        pl.lit(depth, pl.Int64).alias("depth"), "name", "ts", (pl.col("end") - pl.col("ts")).alias("dur")
    )
