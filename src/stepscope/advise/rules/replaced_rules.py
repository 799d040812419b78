"""Operators of PyTorch on a CPU that one cheaper operator replaces: products with one-hot rows, attention in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.advise.calls import (
    elements,
    explained_calls,
    of_step,
    outermost,
    recorded_calls,
    sizes,
    within,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.kernel_rules import BATCHED_PRODUCTS, attention, between_products

#: Part of the step from which on they are told.
_TOLD = 0.07
#: What writes ones into a tensor of zeros; rows and columns from which on the result is large.
_ONE_HOT, _ROWS, _COLUMNS = "aten::scatter_", 16, 32
#: Operators whose own time is this part of a product's do work; the others make views and take memory.
_WORK = 0.02
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
#: Bytes a second at which an embedding reads and writes its rows and its gradient.
_COPY = 4e9


def replaced(observed: Observed) -> Iterator[Claim]:
    """Yield operators that another one replaces."""
    if observed.framework != "torch" or observed.summary.on_device:
        return
    calls = recorded_calls(observed)
    if len(calls):
        yield from _one_hot(observed, calls)
        yield from _attention(observed, calls)


def _one_hot(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Products of the forward whose first matrix is one-hot, and those of the backward that make its weight's gradient.

    A one-hot target of a loss is in no product of the forward.
    """
    made = calls.filter(pl.col("name") == _ONE_HOT)
    tables = {shape for text in made["shapes"].unique() if (shape := _one_hot_rows(text)) is not None}
    if not tables:
        return
    products = calls.filter(pl.col("name").is_in(_PRODUCTS))
    inputs = {text: tuple(one for one in sizes(text) if len(one) > 1) for text in products["shapes"].unique().to_list()}
    forward = pl.col("phase") != "backward"
    first = [bool(inputs[text]) and _matrix(inputs[text][0]) in tables for text in products["shapes"].to_list()]
    taken = products.filter(pl.Series(first, dtype=pl.Boolean) & forward.fill_null(value=True))
    if taken.is_empty():
        return
    rows, columns = _matrix(inputs[taken["shapes"][0]][0])
    width = inputs[taken["shapes"][0]][1][-1]
    turned = {((width, rows), (rows, columns)), ((columns, rows), (rows, width))}
    gradient = products.filter(
        ~forward & pl.Series([inputs[text][:2] in turned for text in products["shapes"].to_list()])
    )
    whole = [elements(sizes(text)[0]) == rows * columns and elements(sizes(text)[0]) > 0 if sizes(text) else False
             for text in calls["shapes"].to_list()]  # fmt: skip
    filled = calls.filter(
        pl.Series(whole, dtype=pl.Boolean) & pl.col("name").is_in([_ONE_HOT, "aten::copy_", "aten::fill_"])
    )
    chosen = outermost(calls, pl.concat([filled, taken, gradient]).unique("row").sort("row"))
    time = float(chosen["time"].sum())
    stays = 4.0 * (4 * rows * width + 2 * columns * width) / _COPY * 1e9
    gain = time - stays
    if observed.share(gain) < _TOLD:
        return
    finding = Finding(
        cause="one-hot-product",
        title=f"{of_step(observed, time)} make one-hot rows of {columns:,} numbers and multiply them with a matrix, "
        "which reads one of its rows for each",
        gain_ns=round(gain), gain_low_ns=round(0.7 * gain), gain_high_ns=round(time),
        basis="the operators that fill the one-hot rows and the products with them, less what an embedding moves",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{rows:,} rows of {columns:,} with a single one, multiplied with {columns:,} × {width}",
                     value=float(rows), result="operator_details", operator=str(taken["name"][0])),
        ),
        remedy=f"Read the rows by their numbers: torch.nn.Embedding({columns}, {width})(tokens) instead of "
        "torch.nn.Linear of torch.nn.functional.one_hot(tokens).",
        operator=str(taken["name"][0]),
    )  # fmt: skip
    yield Claim(finding, Depth.CAUSE, explained_calls(within(calls, chosen)))


def _one_hot_rows(text: str | None) -> tuple[int, int] | None:
    """Return rows and columns of the one-hot matrix that a call of ``scatter_`` makes; None if it makes none."""
    shapes = [shape for shape in sizes(text) if shape]  # single values have none
    if len(shapes) < 2 or shapes[1] != (*shapes[0][:-1], 1):
        return None
    rows, columns = _matrix(shapes[0])
    return (rows, columns) if rows >= _ROWS and columns >= _COLUMNS else None


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return elements(shape[:-1]), shape[-1]


def _attention(observed: Observed, calls: pl.DataFrame) -> Iterator[Claim]:
    """Softmax between two batched products that the program asks for itself; SDPA computes some attention so, too."""
    fused = within(calls, calls.filter(pl.col("name") == "aten::scaled_dot_product_attention"))
    products = calls.filter(pl.col("name").is_in(BATCHED_PRODUCTS))["self"]
    least = _WORK * float(products.median() or 0.0)  # type: ignore[arg-type]
    work = calls.filter((pl.col("self") >= least) & ~pl.col("row").is_in(fused["row"].implode())).sort("track", "ts")
    inside, ends, layers = between_products(work["name"].to_list())
    if not layers:
        return
    time = work["self"].to_numpy()
    between, around = float(time[inside].sum()), float(time[ends].sum())
    if observed.share(between) < _TOLD:
        return
    steps = max(observed.summary.steps.count, 1)
    finding = attention(observed, between, around, layers / steps)
    yield Claim(finding, Depth.CAUSE, explained_calls(work.filter(pl.Series(inside | ends))))
