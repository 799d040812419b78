"""Operations and bytes of every operator call: as the source counts them, else computed from the inputs."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.operators.cost_rules import FAMILIES, PRODUCTS, OperatorInputs, cost, known_name, product_bytes
from stepscope.analyse.operators.operator_calls import by_depth, host_operators, rows_of
from stepscope.trace.tables import Tables, columns_of, shared

Mask = npt.NDArray[np.bool_]

_INPUTS = ["shapes", "dtypes", "concrete"]
_COSTS = {"family": pl.String, "dtype": pl.String, "computed": pl.Int64, "bytes": pl.Int64}


@shared
def operator_costs(tables: Tables) -> pl.DataFrame:
    """Return one row per operator on a host thread whose cost is known: columns ``row``, family, dtype, flops, bytes.

    ``row`` is that of :func:`host_operators`. Of operators inside each other the outermost counts, whose cost contains
    that of the others: ``aten::convolution`` around ``aten::mkldnn_convolution``. ``bytes``, family and dtype are null
    where only the operations are known. A product whose inputs do not say its cost has a row, too, with null for
    ``flops``: sums that it belongs to are not known.
    """
    operators = host_operators(tables)
    details = columns_of(tables, "operators", "span", "flops", "instruction", *_INPUTS)
    details = details.filter(pl.col("instruction").is_null()).drop("instruction")
    details = details.with_columns(pl.Series("row", rows_of(operators["id"], details["span"]))).filter(
        pl.col("row") >= 0
    )
    names = operators["name"].gather(details["row"])
    distinct = names.unique()
    known = pl.DataFrame({"name": distinct, "rule": [known_name(name) for name in distinct.cast(pl.String).to_list()]})
    named = details.with_columns(names.alias("name")).join(known.cast({"rule": pl.String}), on="name", how="left")
    named = named.filter(pl.col("rule").is_not_null() | pl.col("flops").is_not_null())
    found = named.join(_of_inputs(named), on=["rule", *_INPUTS], how="left", nulls_equal=True)
    known_family = found["rule"].replace_strict(FAMILIES, default=None, return_dtype=pl.String)
    rows = found.with_columns(flops=pl.coalesce("computed", "flops"), family=pl.coalesce("family", known_family))
    counted = rows["computed"].is_null() & rows["flops"].is_not_null() & (rows["family"] == "matmul")
    if counted.any():
        rows = rows.update(_of_products(rows.filter(counted)), on="row")
    rows = rows.filter(pl.col("flops").is_not_null() | pl.col("family").is_in(PRODUCTS))
    chosen, products = np.zeros(len(operators), np.bool_), np.zeros(len(operators), np.bool_)
    place = rows["row"].to_numpy()
    chosen[place] = True
    products[place] = rows["family"].is_in(PRODUCTS).fill_null(value=False).to_numpy()
    # What only a source counts does not say bytes and type; an operator inside it may.
    only_counted = rows["computed"].is_null().to_numpy() & _around(operators, products)[place]
    chosen[place[only_counted]] = False
    outermost = rows.filter(pl.Series(chosen[place] & ~_inside(operators, chosen)[place], dtype=pl.Boolean))
    return outermost.select("row", "family", "dtype", "flops", "bytes").sort("row")


def _of_inputs(named: pl.DataFrame) -> pl.DataFrame:
    """Return the cost of each distinct call: an operator with its inputs."""
    calls = named.filter(pl.col("rule").is_not_null() & pl.col("shapes").is_not_null())
    distinct = calls.select("rule", *_INPUTS).unique()
    texts = distinct.with_columns(pl.col(*_INPUTS).cast(pl.String))
    costs = [_cost(*row) for row in texts.iter_rows()]
    columns = [
        pl.Series(name, [one[place] for one in costs], kind) for place, (name, kind) in enumerate(_COSTS.items())
    ]
    return distinct.with_columns(columns)


def _of_products(calls: pl.DataFrame) -> pl.DataFrame:
    """Return type and bytes of products whose operations only their source counts."""
    keys = ["shapes", "dtypes", "flops"]
    distinct = calls.select(keys).drop_nulls().unique()
    found = [_bytes(*row) for row in distinct.cast({"shapes": pl.String, "dtypes": pl.String}).iter_rows()]
    known = distinct.with_columns(
        pl.Series("dtype", [one and one[0] for one in found], pl.String),
        pl.Series("bytes", [one and one[1] for one in found], pl.Int64),
    )
    return calls.select("row", *keys).join(known, on=keys, how="inner").select("row", "dtype", "bytes")


def _bytes(shapes: str, types: str, flops: int) -> tuple[str, int] | None:
    try:
        return product_bytes(flops, json.loads(shapes), [str(one) for one in json.loads(types)])
    except (ValueError, TypeError, RecursionError):
        return None


def _cost(rule: str, *inputs: str | None) -> tuple[str | None, str | None, int | None, int | None]:
    try:
        shapes, types, values = (json.loads(text or "[]") for text in inputs)
        found = cost(rule, OperatorInputs(shapes, [str(one) for one in types], [str(one) for one in values]))
    except (ValueError, TypeError, RecursionError):
        found = None
    return (None,) * 4 if found is None else (found.family, found.dtype, found.flops, found.bytes)


def _around(operators: pl.DataFrame, chosen: Mask) -> Mask:
    """Return which operators are around a chosen one."""
    outer, around = operators["outer"].to_numpy(), np.zeros(len(operators), np.bool_)
    for level in reversed(by_depth(operators["depth"])):
        inner = level[(outer[level] >= 0) & (chosen[level] | around[level])]
        around[outer[inner]] = True
    return around


def _inside(operators: pl.DataFrame, chosen: Mask) -> Mask:
    """Return which operators are inside a chosen one."""
    outer, inside = operators["outer"].to_numpy(), np.zeros(len(operators), np.bool_)
    for level in by_depth(operators["depth"])[1:]:
        inner = level[outer[level] >= 0]
        inside[inner] = inside[outer[inner]] | chosen[outer[inner]]
    return inside
