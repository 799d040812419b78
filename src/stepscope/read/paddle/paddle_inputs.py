"""Inputs of operators that stepscope marks while Paddle records (:mod:`stepscope.collect.paddle.paddle_shapes`)."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import NamedTuple

import polars as pl

from stepscope.read.common.nesting import nest
from stepscope.read.common.plain_text import json_of
from stepscope.trace.paddle_terms import SAYS_INPUTS

#: The backward of an operator; its forward is what the name begins with.
_NODE = r"^Global_(\w+?)GradNode(?:Final)?$"


class _Inputs(NamedTuple):
    """What a range says: shapes, types and other values as JSON, and of how many tensors the backward is asked."""

    shapes: str
    dtypes: str
    concrete: str
    gradients: int

    def of_backward(self) -> _Inputs:
        """Return the same of the backward, whose last value is the number of gradients."""
        return self._replace(concrete=json.dumps([*json.loads(self.concrete), str(self.gradients)]))


def with_inputs(host: pl.DataFrame) -> pl.DataFrame:
    """Return events without the ranges that say inputs, which the operators in them have, with a column ``concrete``.

    The nodes of a backward have those of their forwards, in reverse: Paddle goes through a graph from its end. Where a
    graph has branches, it may take two nodes in the other order, so single rows may be exchanged; sums are not. If a
    backward has more or fewer nodes of an operator than there were forwards before it, their inputs are unknown.

    Args:
        host: Columns of ``HOST`` in :mod:`.paddle_tables`.
    """
    says = host["name"].str.starts_with(SAYS_INPUTS)
    if not says.any():
        return host.with_columns(concrete=pl.lit(None, pl.String))
    told = {text: _parsed(text) for text in host["name"].filter(says).unique()}
    found = _of_forwards(host, told)
    found |= _of_backwards(host, found)
    rows = [(row, *inputs[:3]) for row, inputs in sorted(found.items())]
    schema = {"row": pl.UInt32, **dict.fromkeys(("said_shapes", "said_dtypes", "concrete"), pl.String)}
    host = host.with_row_index("row").join(pl.DataFrame(rows, schema, orient="row"), on="row", how="left")
    host = host.with_columns(shapes=pl.coalesce("said_shapes", "shapes"), dtypes=pl.coalesce("said_dtypes", "dtypes"))
    return host.filter(~says).drop("row", "said_shapes", "said_dtypes")


def _parsed(text: str) -> _Inputs | None:
    try:
        said = json_of(text.removeprefix(SAYS_INPUTS))
        shapes, dtypes, concrete = (json.dumps(list(said[name])) for name in ("shapes", "dtypes", "concrete"))
        return _Inputs(shapes, dtypes, concrete, int(said["gradients"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _of_forwards(host: pl.DataFrame, told: dict[str, _Inputs | None]) -> dict[int, _Inputs]:
    """Return the inputs of the first operator in each range that says them, by its row."""
    thread = host.select(pl.struct("process", "thread").rank("dense")).to_series().to_numpy()
    nesting = nest(thread, host["ts"].to_numpy(), host["dur"].to_numpy())
    names, types, order = host["name"].to_list(), host["type"].to_list(), nesting.order.tolist()
    found: dict[int, _Inputs] = {}
    ranges: list[int] = []
    served = set()
    for place, (row, parent) in enumerate(zip(order, nesting.parent.tolist(), strict=True)):
        ranges.append(place if names[row] in told else ranges[parent] if parent >= 0 else -1)
        around = ranges[place]
        if around >= 0 and around not in served and types[row] == "Operator":
            served.add(around)
            inputs = told[names[order[around]]]
            if inputs is not None:
                found[row] = inputs
    return found


def _of_backwards(host: pl.DataFrame, forwards: dict[int, _Inputs]) -> dict[int, _Inputs]:
    """Return the inputs of the nodes of backwards, by row."""
    operators = host.with_row_index("row").filter(type="Operator").sort("process", "thread", "ts")
    operators = operators.with_columns(node=pl.col("name").str.extract(_NODE).str.to_lowercase())
    waiting: dict[tuple[int, int, str], list[_Inputs]] = defaultdict(list)
    nodes: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    found: dict[int, _Inputs] = {}

    def settle(key: tuple[int, int, str]) -> None:
        if len(waiting[key]) == len(nodes[key]):
            pairs = zip(nodes[key], reversed(waiting[key]), strict=True)
            found.update((row, inputs.of_backward()) for row, inputs in pairs)
        waiting[key], nodes[key] = [], []

    columns = operators.select("row", "process", "thread", "name", "node").iter_rows()
    for row, process, thread, name, node in columns:
        key = process, thread, node or name.partition(" ")[0].replace("_", "").lower()
        if node is not None:
            nodes[key].append(row)
        elif row in forwards and forwards[row].gradients:
            if nodes[key]:
                settle(key)
            waiting[key].append(forwards[row])
    for key in list(nodes):
        settle(key)
    return found
