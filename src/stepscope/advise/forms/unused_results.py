"""Results of which a part is used: the diagonal of a product, the begin of a sorted tensor, few rows, few logits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import polars as pl

from stepscope.advise.calls import elements, texts
from stepscope.advise.forms import MULTIPLIES, Calls, Form, Shape
from stepscope.analyse.quantities import percent_text

_CAUSE = "unused-results"

#: Operators that keep the diagonal of a matrix, those that keep a begin, or some rows, and those that sort.
_DIAGONALS = ("aten::diag", "aten::diagonal", "aten::trace")
_ONE = "aten::select"
_BEGINS, _ROWS = ("aten::slice", "aten::narrow", _ONE), ("aten::index", "aten::index_select")
_SORTS = ("aten::sort", "aten::argsort", "aten::msort")
#: Operators that compute each row from the same row of what they take: layers, and what lies between them.
_LAYERS = ("aten::linear", "aten::addmm", "aten::layer_norm", "aten::rms_norm")
_ROW_BY_ROW = {
    *_LAYERS,
    *(
        f"aten::{name}"
        for name in ("relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "softplus")
    ),
    *(f"aten::{name}" for name in ("hardtanh", "dropout", "softmax", "log_softmax", "add", "sub", "mul", "div")),
    *(f"aten::{name}" for name in ("view", "reshape", "flatten", "unsqueeze", "squeeze")),
}
#: What is used is at most this part of the whole, and is seen in so many calls behind.
_FEW, _BEHIND = 0.25, 4
#: Losses that take logits and targets, at which one begins to look.
LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd")
_HEADS = {*MULTIPLIES, "aten::linear", "aten::addmm"}
#: So many calls lie between head and loss at most: views, casts, and what is done to the targets.
_BEFORE = 16
#: Part of the ignored rows that goes away: choosing rows costs a little.
_SAVED = 0.97

#: Operators that take a part, at which one begins to look.
TAKES = (*_DIAGONALS, *_BEGINS, *_ROWS)


def unused_results(steps: Iterable[Calls]) -> list[Form]:
    """Return what these steps make and do not use, one entry for each kind and shape."""
    found: dict[tuple[str, Shape], tuple[list[pl.DataFrame], list[int]]] = defaultdict(lambda: ([], []))
    for step in steps:
        for kind, whole, begin, end, used in _places(step):
            found[kind, whole][0].append(step.table[begin:end])
            found[kind, whole][1].append(used)
    return [_unused(kind, whole, pl.concat(made), round(median(used))) for (kind, whole), (made, used) in found.items()]


def ignored_targets(steps: Iterable[Calls], ignored: Mapping[int, float]) -> list[Form]:
    """Return the heads of these steps of whose logits the loss ignores a part.

    Args:
        steps: The calls of each step.
        ignored: Of a number of classes, the part of the targets that the loss ignores.
    """
    found: dict[Shape, list[pl.DataFrame]] = defaultdict(list)
    for step in steps:
        for place in step.places(*LOSSES):
            logits = (*step.shapes[place], ())[0]
            if len(logits) > 1 and ignored.get(logits[1]) and (calls := _head(step, place, logits[1])):
                found[logits].append(step.table[calls])
    return [
        Form(
            _CAUSE, pl.concat(calls), _SAVED * ignored[logits[1]],
            f"logits of {logits[0]:,} targets are computed for {logits[1]:,} classes, and the loss ignores "
            f"{percent_text(ignored[logits[1]])} of them",
            "Choose the rows that have a target before the head: keep = labels != -100; "
            "cross_entropy(head(hidden[keep]), labels[keep]).",
        )
        for logits, calls in found.items()
    ]  # fmt: skip


def _unused(kind: str, whole: Shape, calls: pl.DataFrame, used: int) -> Form:
    many = elements(whole[:-1])
    if kind == "diagonal":
        return Form(
            _CAUSE, calls, 0.95,
            f"products of {' × '.join(map(str, whole))} are computed, and only their diagonal is used",
            "Multiply row by row: (a * b).sum(-1) instead of (a @ b.T).diag(); a trace is (a * b.T).sum().",
        )  # fmt: skip
    if kind == "begin":
        return Form(
            _CAUSE, calls, 0.8,
            f"{whole[0]:,} numbers are sorted, of which {used:,} {'are' if used > 1 else 'is'} used",
            "torch.topk(x, k) gives the k largest in their order, with largest=False the smallest; "
            "torch.kthvalue(x, k) gives one of any place, such as a quantile.",
        )  # fmt: skip
    return Form(
        _CAUSE, calls, 1 - used / many, f"layers compute {many:,} rows, of which {used:,} are used",
        "Choose the rows before the layers: model(features[rows]) instead of model(features)[rows]; of sequences, "
        "head(states[:, -1]) instead of head(states)[:, -1].",
    )  # fmt: skip


def _places(step: Calls) -> Iterator[tuple[str, Shape, int, int, int]]:
    """Yield each place where little of a result is taken: kind, shape of the whole, calls, and how much is used."""
    names, shapes = step.names, step.shapes
    for place in step.places(*TAKES):
        if not place or not any(shapes[place][:1]):
            continue
        whole, before, first = shapes[place][0], shapes[place - 1], place - 1
        many, used = elements(whole[:-1]), 0
        if names[place] in _DIAGONALS and names[first] in MULTIPLIES and _product(before) == whole[-2:]:
            kind = "diagonal"
        elif names[place] in _BEGINS and names[first] in _SORTS and before[:1] == (whole,) and len(whole) == 1:
            kind, used = "begin", 1 if names[place] == _ONE else _taken(names, shapes, place, whole)
        elif names[first] in _ROW_BY_ROW and _takes_rows(step, place, whole):
            kind, first, used = "rows", place, _taken(names, shapes, place, whole)
            while first and names[first - 1] in _ROW_BY_ROW and _has(shapes[first - 1], many):
                if len(whole) > 2 and names[first - 1] == "aten::add" and len(set(shapes[first - 1][:2])) == 1:
                    break  # what is added comes from elsewhere, too
                first -= 1
            if not any(name in _LAYERS for name in names[first:place]):
                continue
        else:
            continue
        if kind != "diagonal" and not used:
            continue
        later = [row for row in range(place + 1, len(names)) if whole in shapes[row] and names[row] not in _BEGINS]
        if any(names[row] not in _ROWS for row in later):
            continue
        if kind == "rows":
            used += sum(_taken(names, shapes, row, whole) or many for row in later)
        if kind != "rows" or used <= _FEW * many:
            yield kind, whole, first, place + 1, used


def _takes_rows(step: Calls, place: int, whole: Shape) -> bool:
    """Return whether an operator takes rows of a matrix, or a place of each of several sequences of rows."""
    if len(whole) == 2:
        return step.names[place] in _ROWS
    said = (*texts(step.table["concrete"][place]), "", "")[1]
    return len(whole) > 2 and step.names[place] in _BEGINS and said not in ("-1", str(len(whole) - 1))


def _taken(names: list[str], shapes: list[tuple[Shape, ...]], place: int, whole: Shape) -> int:
    """Return how many rows of a tensor the calls behind one take on; 0 if that is not seen, or more than few."""
    of_all = elements(whole[: max(len(whole) - 1, 1)])
    behind = [row for row in range(place + 1, min(place + 1 + _BEHIND, len(names))) if names[row] != "aten::embedding"]
    for shape in (shape for row in behind for shape in shapes[row] if shape):
        alike = len(shape) == len(whole) == 1 or (len(whole) >= len(shape) > 1 and shape[-1] == whole[-1])
        if alike:
            many = elements(shape[: max(len(shape) - 1, 1)])
            return many if many <= _FEW * of_all else 0
    return 0


def _product(inputs: Sequence[Shape]) -> Shape:
    """Return the last two sizes of a product of matrices of these shapes; empty of vectors."""
    first, second = (*inputs[:2], (), ())[:2]
    return (first[-2], second[-1]) if len(first) > 1 < len(second) else ()


def _has(inputs: Sequence[Shape], many: int) -> bool:
    """Return whether one of these shapes is that of so many rows."""
    return any(len(shape) > 1 and elements(shape[:-1]) == many for shape in inputs)


def _head(step: Calls, loss: int, classes: int) -> list[int]:
    """Return the places of a loss, of the product that makes its logits, and of what has them in between."""
    places = [loss]
    for place in range(loss - 1, max(loss - 1 - _BEFORE, -1), -1):
        if any(classes in shape for shape in step.shapes[place]):
            places.append(place)
            if step.names[place] in _HEADS:
                return places[::-1]
    return []
