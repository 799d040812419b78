"""Time of the operators by the program's own line and by module. Definitions: ``docs/definitions.md``."""

from __future__ import annotations

import polars as pl

from stepscope.analyse.anatomy.call_sites import call_sites
from stepscope.analyse.stacks.own_code import own_code
from stepscope.analyse.units import titled, us
from stepscope.trace.tables import Tables, columns_of, has_rows

_LINE = ["file", "line", "function"]
_TIMES = ["count", "host", "device"]


def stacks_known(tables: Tables) -> bool:
    """Return whether the Python stack of an operator is known."""
    stacks = columns_of(tables, "operators", "stack")["stack"]
    return stacks.null_count() < len(stacks)


def modules_known(tables: Tables) -> bool:
    """Return whether the module of an operator is known."""
    modules = columns_of(tables, "operators", "module")["module"]
    return modules.null_count() < len(modules) or has_rows(tables, "instructions")


def operator_lines(tables: Tables) -> pl.DataFrame:
    """Return one row per own line of the program and phase: the operators called there, those with most time first."""
    each = _summed(tables, "stack")
    lines = own_lines(tables)
    calls = each.join(lines, on="stack", how="inner")
    innermost = pl.col("innermost")
    keys = [*_LINE, "phase"]
    rows = calls.group_by(keys).agg(
        pl.col("count").filter(innermost).sum(),
        pl.col("host").filter(innermost).sum(),
        pl.col("device").filter(innermost).sum(),
        host_total=pl.col("host").sum(),
        device_total=pl.col("device").sum(),
    )
    by_name = calls.filter(innermost).group_by(*keys, "name").agg(time=pl.col("host").sum() + pl.col("device").sum())
    top = by_name.sort("time", "name", descending=[True, False]).group_by(keys, maintain_order=True).first()
    rows = rows.join(top.select(*keys, operator="name"), on=keys, how="left", nulls_equal=True)
    most = pl.max_horizontal("host_total", "device_total")
    ordered = rows.sort(most, *keys, descending=[True, *[False] * len(keys)], nulls_last=True)
    return ordered.select(titled({
        "File": "file", "Line": "line", "Function": "function", "Phase": "phase", "Count": pl.col("count"),
        "Host Self(us)": us("host"), "Host Total(us)": us("host_total"), "Device Self(us)": us("device"),
        "Device Total(us)": us("device_total"), "Operator": "operator",
    }))  # fmt: skip


def own_lines(tables: Tables) -> pl.DataFrame:
    """Return the own lines of each stack, each once: columns stack, file, line, function, and whether it is innermost.

    A stack without a frame of the program's own has no row.
    """
    stacks = tables["stacks"].with_columns(place=pl.int_ranges(pl.col("frames").list.len()))
    frames = stacks.explode("frames", "place").unnest("frames").rename({"id": "stack"})
    own = frames.filter(own_code(tables).fill_null(value=False) & (pl.col("line") > 0)).sort("stack", "place")
    first = pl.col("place") == pl.col("place").min().over("stack")
    marked = own.with_columns(innermost=first).unique(["stack", *_LINE], keep="first", maintain_order=True)
    return marked.select("stack", *_LINE, "innermost").collect()


def operator_modules(tables: Tables) -> pl.DataFrame:
    """Return one row per module, each followed by the modules in it: time of its own operators, and with theirs.

    The row without a module is that of operators that belong to none.
    """
    each = _summed(tables, "module")
    paths = each["module"].unique().to_list()
    pairs = [(path, part) for path in paths if path is not None for part in _above(path)]
    above = pl.DataFrame(pairs, schema={"module": pl.String, "of": pl.String}, orient="row")
    inside = pl.concat([above, pl.DataFrame({"module": [None], "of": [None]}, schema=above.schema)])
    calls = each.join(inside, on="module", how="inner", nulls_equal=True)
    mine = pl.col("module").eq_missing(pl.col("of"))
    time = pl.col("device") if calls["device"].sum() else pl.col("host")
    rows = calls.group_by("of").agg(
        pl.col("count", "host", "device").filter(mine).sum(),
        host_total=pl.col("host").sum(),
        device_total=pl.col("device").sum(),
        **{phase: time.filter(pl.col("phase") == phase).sum() for phase in ("forward", "backward")},
    )
    totals = {row["of"]: max(row["host_total"], row["device_total"]) for row in rows.iter_rows(named=True)}
    # Every module is followed by those in it, the longest first; what belongs to none stands behind.
    order = [
        (path is None, [(-totals[part], part) for part in _above(path)] if path is not None else [])
        for path in rows["of"].to_list()
    ]
    ordered = rows[sorted(range(len(order)), key=order.__getitem__)]
    return ordered.select(titled({
        "Module": "of", "Depth": pl.col("of").str.count_matches("/").cast(pl.Int64), "Count": pl.col("count"),
        "Host Self(us)": us("host"), "Host Total(us)": us("host_total"), "Device Self(us)": us("device"),
        "Device Total(us)": us("device_total"), "Forward(us)": us("forward"), "Backward(us)": us("backward"),
    }))  # fmt: skip


def _above(path: str) -> list[str]:
    """Return the modules around one, outermost first, and itself."""
    parts = path.split("/")
    return ["/".join(parts[: place + 1]) for place in range(len(parts))]


def _summed(tables: Tables, by: str) -> pl.DataFrame:
    """Return count, host and device time in ns of the operators by stack or module, name and phase."""
    found = call_sites(tables).lazy().group_by(by, "name", "phase")
    sums = found.agg(pl.len().cast(pl.Int64).alias("count"), pl.col("host", "device").sum())
    return sums.with_columns(pl.col("name").cast(pl.String)).sort(by, "name", "phase").collect()
