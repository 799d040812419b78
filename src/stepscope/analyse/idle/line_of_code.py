"""The line of the program's own Python code that spans belong to."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from stepscope.analyse.idle.thread_time import nearest_around
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.stacks.own_code import own_code
from stepscope.analyse.step.activity import Rows, of_kinds, span_kinds
from stepscope.trace.tables import Tables, collected, columns_of

#: A function as PyTorch's profiler names it: ``train.py(12): forward``; paths begin below the directory of packages.
_FUNCTION = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
_FRAMEWORK = re.compile(r"^(?:torch|numpy|jax|jaxlib|flax|mindspore|paddle|stepscope)[/\\]|^<|^threading\.py$")
_UNKNOWN = pl.Series("line", [None], dtype=pl.String)


def lines_of_stacks(tables: Tables, stacks: pl.Series) -> pl.DataFrame:
    """Return the innermost own frame of each stack that has one, as text ``file:line function``.

    Columns: stack, line.
    """
    wanted = pl.DataFrame({"id": stacks.drop_nulls().unique()}).lazy()
    listed = tables["stacks"].join(wanted, on="id", how="semi").filter(pl.col("frames").list.len() > 0)
    frames = listed.explode("frames").unnest("frames").filter(own_code(tables).fill_null(value=False))
    frames = frames.filter(~pl.col("file").str.contains(_FRAMEWORK.pattern))
    text = pl.format(
        "{}:{} {}", "file", pl.col("line").fill_null(0), pl.col("function").fill_null("")
    ).str.strip_chars()
    first = frames.group_by("id", maintain_order=True).agg(line=text.first())
    return first.rename({"id": "stack"}).pipe(collected, tables)


def lines_of_spans(tables: Tables, rows: Rows) -> pl.Series:
    """Return the own line of each row of ``spans``: of its stack, else of the Python function around it; else null."""
    unique, back = np.unique(rows, return_inverse=True)
    line = _of_stacks(tables, unique)
    if of_kinds(span_kinds(tables), "python").any():
        line = pl.select(pl.coalesce(line, _functions_around(tables, unique))).to_series()
    return line[pl.Series(back.astype(np.uint32))]


def _of_stacks(tables: Tables, rows: Rows) -> pl.Series:
    """Return the own line of the stack of each of the ascending rows of ``spans``; null where it has none."""
    said = columns_of(tables, "operators", "span", "stack")
    if not len(rows) or said["stack"].null_count() == len(said):
        return _UNKNOWN.new_from_index(0, len(rows))
    said = said.drop_nulls()
    found = rows_of(columns_of(tables, "spans", "id")["id"], said["span"])
    place = np.minimum(np.searchsorted(rows, found), len(rows) - 1)
    known = np.flatnonzero((rows[place] == found) & (found >= 0))
    asked = pl.DataFrame({"place": place[known], "stack": said["stack"][known]})
    lines = asked.join(lines_of_stacks(tables, asked["stack"]), on="stack", how="left", maintain_order="left")
    number = np.full(len(rows), -1, np.int64)
    number[lines["place"].to_numpy()] = np.arange(len(lines))
    return pl.concat([lines["line"], _UNKNOWN])[np.where(number >= 0, number, len(lines))]


def own_functions(tables: Tables) -> dict[int, str]:
    """Return the program's own Python functions among the spans, as ``file:line function``, by the number of the name.

    The line is the first of the function.
    """
    names = columns_of(tables, "spans", "name")["name"]
    python = np.flatnonzero(of_kinds(span_kinds(tables), "python"))
    distinct = np.unique(names.to_physical().to_numpy()[python], return_index=True)
    texts = names.gather(python[distinct[1]]).cast(pl.String).to_list()
    parsed = [_FUNCTION.fullmatch(text) for text in texts]
    files = pl.DataFrame({"file": [one["file"] if one else None for one in parsed]}, schema={"file": pl.String})
    own = files.select(own_code(tables).fill_null(value=False)).to_series().to_list()
    return {
        int(code): f"{one['file']}:{one['line']} {one['function']}"
        for code, one, mine in zip(distinct[0], parsed, own, strict=True)
        if one and mine and not _FRAMEWORK.search(one["file"])
    }


def _functions_around(tables: Tables, rows: Rows) -> pl.Series:
    """Return the innermost own Python function around each row of ``spans``."""
    shown, codes = own_functions(tables), columns_of(tables, "spans", "name")["name"].to_physical().to_numpy()
    chosen = of_kinds(span_kinds(tables), "python") & np.isin(codes, list(shown))
    found = nearest_around(tables, rows, chosen)
    return pl.Series("line", [shown[int(codes[row])] if row >= 0 else None for row in found], dtype=pl.String)
