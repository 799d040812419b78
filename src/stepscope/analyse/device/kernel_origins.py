"""What made each kernel: operator, compiled region, graph, module, line. Definition: ``docs/definitions.md``."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from stepscope.analyse.idle.dependencies import device_work
from stepscope.analyse.idle.line_of_code import lines_of_spans
from stepscope.analyse.idle.thread_time import nearest_around, parents
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, devices_of, of_kinds, span_kinds
from stepscope.analyse.units import us
from stepscope.trace.tables import Tables, columns_of

#: Operators that stand for a whole region which a compiler made: torch.compile, its generated code, JAX's calls.
_REGION = r"^(?:Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction|PjitFunction)"
#: A kernel of Inductor says in its name what it fuses: ``triton_poi_fused_add_relu_3``.
_FUSED = re.compile(r"^(?:triton|cpp)_(?:[a-z]+_)*?fused_(?P<fused>\w*?)_?\d*$")


def kernel_origins(tables: Tables) -> pl.DataFrame:
    """Return one row per kernel name, device and what launched it; most time first. Times in µs."""
    work = device_work(tables)
    spans = columns_of(tables, "spans", "id", "name", "track", "dur", "kind")
    kernels = columns_of(tables, "kernels", "span", "operator", "graph")
    ids = spans["id"].gather(work.row)
    joined = pl.DataFrame({"span": ids}).join(kernels, on="span", how="left", maintain_order="left")
    operator = rows_of(spans["id"], joined["operator"])
    devices, device = devices_of(tables, spans["track"].gather(work.row))
    names = spans["name"].gather(work.row).cast(pl.String)
    frame = pl.DataFrame(
        {
            "device": pl.Series(devices, dtype=pl.String).gather(device),
            "name": names,
            "kind": spans["kind"].gather(work.row).cast(pl.String),
            "operator": _names_of(tables, operator),
            "region": _names_of(tables, _regions(tables, operator)),
            "module": _modules(tables, joined["operator"]),
            "line": lines_of_spans(tables, operator),
            "graph": joined["graph"],
            "dur": spans["dur"].gather(work.row),
        }
    )
    keys = ["device", "name", "kind", "operator", "region", "graph", "module", "line"]
    rows = frame.group_by(keys).agg(pl.len().alias("count"), pl.col("dur").sum().alias("total"))
    fused = {name: found["fused"] for name in rows["name"].unique() if (found := _FUSED.match(name))}
    rows = rows.with_columns(fused=pl.col("name").replace_strict(fused, default=None, return_dtype=pl.String))
    return rows.sort("total", *keys, descending=[True, *[False] * len(keys)], nulls_last=True).select(
        pl.col("device").alias("Device_id"), pl.col("name").alias("Name"), pl.col("kind").alias("Type"),
        pl.col("operator").alias("Operator"), pl.col("fused").alias("Fused"), pl.col("region").alias("Compiled Region"),
        pl.col("graph").alias("Graph ID"), pl.col("module").alias("Module"), pl.col("line").alias("Line"),
        pl.col("count").alias("Count"), us("total").alias("Total Time(us)"),
        (pl.col("total") / 1000 / pl.col("count")).round(3).alias("Avg Time(us)"),
    )  # fmt: skip


def _names_of(tables: Tables, rows: Rows) -> pl.Series:
    names = columns_of(tables, "spans", "name")["name"]
    shown = names.gather(np.maximum(rows, 0)).cast(pl.String) if len(names) else pl.Series([], dtype=pl.String)
    return pl.select(pl.when(pl.Series(rows) >= 0).then(shown)).to_series()


def _regions(tables: Tables, operator: Rows) -> Rows:
    """Return the outermost compiled region around each operator; -1 for none."""
    names = columns_of(tables, "spans", "name")["name"]
    regions = names.cast(pl.String).str.contains(_REGION).to_numpy() & of_kinds(span_kinds(tables), "operator")
    found, parent = np.full(len(operator), -1, np.int64), np.append(parents(tables), -1)
    around = nearest_around(tables, operator, regions)
    while (around >= 0).any():
        found = np.where(around >= 0, around, found)
        around = nearest_around(tables, parent[around], regions)
    return found


def _modules(tables: Tables, operators: pl.Series) -> pl.Series:
    modules = columns_of(tables, "operators", "span", "module").drop_nulls()
    joined = operators.rename("span").to_frame().join(modules, on="span", how="left", maintain_order="left")
    return joined["module"].cast(pl.String)
