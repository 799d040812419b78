"""Parts that a program takes from one tensor, one after the other, and the layers to which it gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import polars as pl

from stepscope.advise.calls import ACCUMULATES, CELLS, sizes, texts

#: Parts of a tensor in a step from which on they are a loop.
_MANY = 16
#: Operators that take a part of a tensor, those that take the part that another tensor says, and the one that takes all
#: parts at once.
_PARTS, _CHOSEN, ALL_PARTS = ("aten::select", "aten::slice"), ("aten::index", "aten::index_select"), "aten::unbind"
TAKES = (*_PARTS, *_CHOSEN, ALL_PARTS)
#: Operators that join tensors, and those that write into a part of one or read a number.
_JOINS = ("aten::stack", "aten::cat", "aten::hstack", "aten::vstack")
_PUTS = r"^aten::(?:index_\w+_|_?index_put_?\w*|copy_|scatter\w*|add_|sub_|item|_local_scalar_dense|is_nonzero|equal)$"
#: Operators of layers, and products, which are layers if one of their factors is a parameter.
LINEAR = "aten::linear"
_LAYERS, _PRODUCTS = (LINEAR, "aten::conv1d", "aten::conv2d", "aten::conv3d", *CELLS), ("aten::matmul", "aten::mm")
#: A weight is used once for each sum of its gradients, or so often; part of the layers' calls that take the parts; part
#: of their data whose size differs from that before them.
_ONCE, _MOST, _DIFFER = 1.5, 0.8, 0.5
#: Layers in a row that take one tensor, or small networks that do, from which on they are a loop; layers of a network.
_BRANCHES, _DEEPEST = 8, 4
_RUN: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("track", "step", "begin", "end", "branches", "depth"), pl.Int64),
    "of": pl.String,
}


def anchors(top: pl.DataFrame, steps: int) -> Iterator[tuple[pl.Expr, float]]:
    """Yield what tells the calls that take the parts of a tensor, and how many parts a step has, the most first."""
    parts = top.filter(pl.col("name").is_in([*_PARTS, *_CHOSEN]))
    found: list[tuple[float, pl.Expr]] = []
    for name, shapes, values in parts.group_by("name", "shapes").agg(pl.col("concrete")).iter_rows():
        # The same few parts for each layer, such as query, key and value, do not count.
        pieces = len(values) / steps
        if name in _PARTS:
            pieces = min(pieces, len({tuple(texts(text)[:3]) for text in values}))
        found.append((pieces, (pl.col("name") == name) & pl.col("shapes").eq_missing(shapes)))
    for (text,) in top.filter(pl.col("name") == ALL_PARTS).select("shapes").unique().iter_rows():
        shape = (sizes(text) or ((),))[0]
        if len(shape) > 1:
            part = [one for one in top["shapes"].unique().to_list() if (sizes(one) or ((),))[0] == shape[1:]]
            found.append((float(shape[0]), pl.col("shapes").is_in(part)))
    yield from ((anchor, pieces) for pieces, anchor in sorted(found, key=lambda one: -one[0]) if pieces >= _MANY)


def collected(body: pl.DataFrame, top: pl.DataFrame) -> int:
    """Return how many results of a loop's parts are joined, written into a tensor, read, or added to a number.

    A recurrence, of which each part needs the result of the one before it, does nothing of this until its end.

    Args:
        body: The calls of the loop.
        top: All outermost calls of the program's own.
    """
    joins = top.filter(pl.col("name").is_in(_JOINS) & (pl.col("ts") >= body["ts"].min()))
    joined = sum(len(sizes(text)) for text in joins["shapes"].to_list())
    numbers = pl.col("name").is_in(["aten::add", "aten::add_", "aten::sub"]) & pl.col("shapes").str.starts_with("[[],")
    puts = numbers | pl.col("name").str.contains(_PUTS)
    return joined + len(body.filter(puts))


def layers_in(calls: pl.DataFrame, body: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of layers in a loop: operators of layers, and products with a parameter."""
    products = body.filter(pl.col("name").is_in(_PRODUCTS)).select("shapes").unique().to_series()
    learned = gradients(calls)
    with_weights = [text for text in products if learned.keys() & set(sizes(text)[1:2])]
    of_products = pl.col("name").is_in(_PRODUCTS) & pl.col("shapes").is_in(with_weights)
    return body.filter(pl.col("name").is_in(_LAYERS) | of_products)


def layers_of_parts(calls: pl.DataFrame, layers: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Return the layers that take parts, each with weights of its own, such as the experts of a mixture; or no row.

    In a chain, a layer takes what the layer before it gives, and its data keep their size. Data of parts have the size
    of a part, or sizes that differ from layer to layer where other tensors choose them.

    Args:
        calls: All calls.
        layers: Calls of the layers of a loop, in their order.
        taken: The calls of the loop that take the parts.
    """
    learned, used = gradients(calls), defaultdict[tuple[int, ...], list[tuple[int, ...]]](list)
    of = [(*sizes(text)[:2], (), ())[:2] for text in layers["shapes"].to_list()]
    for data, weight in of:
        used[weight].append(data[:-1])
    if len(layers) > _ONCE * sum(learned.get(weight, 0) for weight in used):
        return layers.clear()
    whole = (sizes(taken["shapes"][0]) or ((),))[0]
    part = {(whole[:place] + whole[place + 1 :])[:-1] for place in range(len(whole))} | {whole[:-1]}
    fit = {weight for weight, data in used.items() if part.issuperset(data) or _change(data)}
    mine = layers.filter(pl.Series([weight in fit for _, weight in of], dtype=pl.Boolean))
    return mine if len(mine) >= _MOST * len(layers) else layers.clear()


def branches(layers: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of layers, or of small networks, of one shape that take the same tensor one after the other.

    In a chain, each layer takes what the one before it gives: so do the layers of a network here, but for the first.

    Args:
        layers: Calls of linear layers by thread and step, in the order of time.

    Returns:
        A row for each run: ``branches``, their number; ``depth``, the layers of each; ``of``, shapes of the first one.
    """
    found = []
    for (track, step), calls in layers.group_by("track", "step", maintain_order=True):
        ts, shapes = calls["ts"].to_list(), calls["shapes"].to_list()
        for depth in range(1, _DEEPEST + 1):
            for first, last in _repeats(shapes, depth):
                if _begins_anew(shapes[first : first + depth]):
                    found.append((track, step, ts[first], ts[last], (last + 1 - first) // depth, depth, shapes[first]))
    rows = pl.DataFrame(found, schema=_RUN, orient="row").sort("begin")
    return rows.cast({"track": layers.schema["track"], "step": layers.schema["step"]})


def _repeats(shapes: list[str], depth: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last place of each stretch that repeats so many shapes often enough."""
    first = 0
    for place in range(depth, len(shapes) + 1):
        if place == len(shapes) or shapes[place] != shapes[place - depth]:
            times = (place - first) // depth
            if times >= _BRANCHES:
                yield first, first + times * depth - 1
            first = place - depth + 1


def _begins_anew(shapes: list[str]) -> bool:
    """Return whether the first of these layers takes what the last one cannot have given, not in halves either."""
    of = [(*sizes(text)[:2], (), ())[:2] for text in shapes]
    if not all(data and weight for data, weight in of):
        return False
    takes, gives = [data[-1] for data, _ in of], [weight[0] for _, weight in of]
    linked = gives[:-1] == takes[1:]
    return linked and takes[0] != gives[-1] and (len(of) == 1 or gives[-1] % takes[0] != 0)


def _change(data: list[tuple[int, ...]]) -> bool:
    """Return whether most sizes differ from the one before them."""
    return sum(one != other for one, other in pairwise(data)) > _DIFFER * len(data)


def gradients(calls: pl.DataFrame) -> dict[tuple[int, ...], int]:
    """Return how many gradients are summed into weights, by shape."""
    sums = calls.filter(pl.col("name") == ACCUMULATES)["shapes"].value_counts()
    found: dict[tuple[int, ...], int] = defaultdict(int)
    for text, count in sums.iter_rows():
        for shape in sizes(text)[:1]:
            if len(shape) > 1:
                found[shape] += count
    return found
