"""Calls of which another form gives the same result at a lower cost: told by operators that follow each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise, takewhile
from math import log2
from typing import NamedTuple

import polars as pl

from stepscope.advise.calls import broadcast, elements, texts
from stepscope.advise.forms import MULTIPLIES, Calls, Form, Shape

_CAUSE = "costly-form"

#: Operators of linear algebra, and those that take one singular value of all.
_DIAGONALS, _INVERSES = ("aten::diag", "aten::diag_embed"), ("aten::linalg_inv", "aten::inverse", "aten::linalg_pinv")
_SINGULAR = ("aten::linalg_svdvals", "aten::linalg_svd", "aten::svd", "aten::linalg_eigvalsh", "aten::linalg_eigh")
_NORMS = ("aten::linalg_matrix_norm",)
_ONE_OF = ("aten::select", "aten::max", "aten::amax")
#: Operators that write a tensor several times, and those that would do so by themselves, from one.
_REPEATS = ("aten::repeat", "aten::tile", "aten::repeat_interleave")
_BROADCASTS = {f"aten::{name}{end}" for name in ("add", "sub", "mul", "div", "where", "minimum") for end in ("", "_")}
_WINDOWS, _QUANTILES = ("aten::im2col",), ("aten::quantile", "aten::nanquantile")
_JOINS, _RENORMS = ("aten::cat", "aten::concat"), ("aten::embedding_renorm_",)
_TAKES = ("aten::slice", "aten::narrow", "aten::select")
#: Operators that change no number, or each by the same factor: the order of products around them is free.
_VIEWS = {f"aten::{name}" for name in ("transpose", "numpy_T", "t", "unsqueeze", "squeeze", "contiguous", "expand")}
_SCALES = {"aten::mul", "aten::div"}
#: Operators that factorise or solve, those that gather rows, and recurrent layers, which have steps of their own.
_FACTORISES, _GATHERS = ("aten::linalg_", "aten::cholesky"), ("aten::index", "aten::index_select")
_RECURRENT = ("aten::gru", "aten::lstm", "aten::rnn_tanh", "aten::rnn_relu")
#: Layers of experts, and the calls around a mask in which they are.
_OF_EXPERTS, _NEAR = {"aten::linear", *(f"aten::{name}" for name in ("gelu", "relu", "silu", "dropout", "tanh"))}, 6
#: Rows are gathered from so many times fewer; sequences from which on they are several, and how many calls one takes
#: that has them all, padded.
_FEWER, _SEVERAL, _BATCHED = 2, 4, 2
#: Calls behind in which a result is taken.
_BEHIND = 4
#: The other order of two products costs at most this part; a queue is so many times what it takes on.
_CHEAPER, _QUEUE = 0.6, 8
#: Operators that pass over a tensor, those of them that sum up, and how many of them make a layer; of an activation, so
#: many have a number as their second operand.
_PASSES = {
    *(f"aten::{name}" for name in ("add", "sub", "mul", "div", "pow", "square", "exp", "log", "sqrt", "rsqrt")),
    *(f"aten::{name}" for name in ("mean", "sum", "var", "std", "var_mean", "std_mean", "max", "amax", "neg")),
    *("aten::tanh", "aten::erf"),
}
_MEANS, _PIECES, _NUMBERS = {"aten::mean", "aten::sum", "aten::var", "aten::std", "aten::var_mean"}, 4, 3
#: Operators that enlarge images, and convolutions. Taps from which on a layer can make the spectrum of one channel.
_ENLARGES = ("aten::upsample_bilinear2d", "aten::upsample_nearest2d", "aten::upsample_bicubic2d")
_CONVOLVES, _TAPS = ("aten::conv2d", "aten::convolution"), 128
#: A Fourier transform takes this part of the products for a spectrum, times the binary logarithm of its length, divided
#: by the number of its frequencies. Measured with torch.stft of 1,024 samples on a processor.
_FOURIER = 37
#: Passes over a sequence that grows by one, at least; embeddings of a step that are looked at, at most; and the part of
#: each pass that stays where its keys and values are kept.
_GROWS, _GENERATED, _KEPT = 4, 2048, 0.3
#: Parts that another form saves.
_ALL, _SOLVING, _SELECTING, _CONVOLVING, _FUSED, _ALL_PASSES = 0.95, 0.75, 0.7, 0.7, 0.45, 0.8


class _CostlyCalls(NamedTuple):
    """A costly form in a step: the places of its calls, the part that is saved, and its size in words."""

    places: tuple[int, ...]
    part: float
    size: str


class _CostlyForm(NamedTuple):
    """A form: the operators at which one begins to look, what tells it there, the clause and the change."""

    begins: tuple[str, ...]
    found: Callable[[Calls, int], _CostlyCalls | None]
    title: str
    remedy: str
    backward: bool = True


def costly_forms(steps: Iterable[Calls]) -> list[Form]:
    """Return the costly forms of these steps, one entry for each kind."""
    made: dict[str, list[tuple[pl.DataFrame, _CostlyCalls]]] = defaultdict(list)
    for step in steps:
        for name, kind in _KINDS.items():
            for place in step.places(*kind.begins):
                if found := kind.found(step, place):
                    made[name].append((step.table[list(found.places)], found))
    return [_form(_KINDS[name], found) for name, found in made.items()]


def _form(kind: _CostlyForm, found: list[tuple[pl.DataFrame, _CostlyCalls]]) -> Form:
    times = [float(table["time"].sum()) for table, _ in found]
    _, largest = max(zip(times, (one for _, one in found), strict=True), key=lambda one: one[0])
    part = sum(time * one.part for time, (_, one) in zip(times, found, strict=True)) / max(sum(times), 1e-9)
    calls = pl.concat([table for table, _ in found]).unique("row", maintain_order=True)
    return Form(_CAUSE, calls, part, kind.title.format(largest.size), kind.remedy, kind.backward)


def _product(step: Calls, place: int) -> Shape:
    """Return the shape of a product of two tensors, empty if it is not known."""
    first, second = (*step.shapes[place][:2], (), ())[:2]
    if len(first) < 2 or not second:
        return ()
    batch = max(first[:-2], second[:-2], key=len)
    return (*batch, first[-2], *second[-1:]) if len(second) > 1 else (*batch, first[-2])


def _multiplied(step: Calls, place: int, whole: Shape) -> int | None:
    """Return the place of the first product behind that takes a tensor of this shape."""
    for behind in step.behind(place, _BEHIND):
        if step.names[behind] in MULTIPLIES and whole in step.shapes[behind][:2]:
            return behind
    return None


def _diagonal(step: Calls, place: int) -> _CostlyCalls | None:
    """``x @ torch.diag(w)``: columns or rows are scaled."""
    vector = (*step.shapes[place], ())[0]
    if not vector or (len(vector) > 1 and step.names[place] == "aten::diag"):
        return None
    product = _multiplied(step, place, (*vector, *vector[-1:]))
    return _CostlyCalls((place, product), _ALL, " × ".join(map(str, 2 * vector[-1:]))) if product is not None else None


def _order(step: Calls, place: int) -> _CostlyCalls | None:
    """Two products whose other order multiplies less: ``a @ (b @ c)`` for ``(a @ b) @ c``, or the reverse."""
    whole = _product(step, place)
    if len(whole) < 2 or (place and step.names[place - 1] in _DIAGONALS):
        return None
    behind = place + 1
    while behind < len(step.names) and (
        step.names[behind] in _VIEWS or (step.names[behind] in _SCALES and step.shapes[behind][:2] == (whole, ()))
    ):
        behind += 1
    if behind == len(step.names) or step.names[behind] not in {*MULTIPLIES, "aten::linear"}:
        return None
    inner, (rows, columns) = step.shapes[place][0][-1], whole[-2:]
    first, second = (*step.shapes[behind][:2], (), ())[:2]
    if first == whole and second:
        last = second[0] if step.names[behind] == "aten::linear" else second[-1] if len(second) > 1 else 1
        now, other = rows * columns * (inner + last), inner * last * (columns + rows)
    elif second == whole and len(first) > 1 and step.names[behind] != "aten::linear":
        now, other = rows * columns * (inner + first[-2]), first[-2] * inner * (rows + columns)
    else:
        return None
    used_again = any(whole in step.shapes[later] for later in step.behind(behind, len(step.names)))
    if not now or other > _CHEAPER * now or used_again:
        return None
    return _CostlyCalls((place, behind), 1 - other / now, f"{' × '.join(map(str, whole))} numbers in between")


def _inverse(step: Calls, place: int) -> _CostlyCalls | None:
    """``torch.linalg.inv(a) @ b``: a system of equations is solved."""
    whole = (*step.shapes[place], ())[0]
    product = _multiplied(step, place, whole)
    other = next((shape for shape in step.shapes[product][:2] if shape != whole), None) if product is not None else None
    if product is None or other is None or len(whole) < 2 or not whole[-1]:
        return None
    size, columns = whole[-1], other[-1] if len(other) > 1 else 1
    part = _SOLVING * size / (size + min(columns, size))
    return _CostlyCalls((place, product), part, " × ".join(map(str, whole)))


def _largest(step: Calls, place: int) -> _CostlyCalls | None:
    """All singular values of a matrix, of which one is used."""
    matrix = (*step.shapes[place], ())[0]
    said = " × ".join(map(str, matrix))
    if step.names[place] in _NORMS:
        order = (*texts(step.table["concrete"][place]), "", "")[1]
        return _CostlyCalls((place,), _ALL, said) if order in ("2", "2.", "-2", "-2.") else None
    if len(matrix) < 2:
        return None
    values = (*matrix[:-2], min(matrix[-2:]))
    taken = [row for row in step.behind(place, _BEHIND) if values in step.shapes[row]]
    one = bool(taken) and step.names[taken[0]] in _ONE_OF
    return _CostlyCalls((place,), _ALL, said) if one else None


def _repeated(step: Calls, place: int) -> _CostlyCalls | None:
    """A tensor is written several times for an operator that would take it as it is."""
    once = (*step.shapes[place], ())[0]
    for behind in step.behind(place, _BEHIND):
        if step.names[behind] in _BROADCASTS:
            shapes = step.shapes[behind][:2]
            if len(shapes) < 2 or shapes[0] != shapes[1] or not once or elements(shapes[0]) <= elements(once):
                return None
            # Rows that are repeated one by one broadcast as a dimension of their own.
            kept = once[1:] if step.names[place] == "aten::repeat_interleave" else once
            fits = all(size in (1, whole) for size, whole in zip(reversed(kept), reversed(shapes[0]), strict=False))
            return _CostlyCalls((place,), _ALL, " × ".join(map(str, shapes[0]))) if fits else None
    return None


def _convolution(step: Calls, place: int) -> _CostlyCalls | None:
    """``unfold`` and a product: a convolution by hand."""
    product = next((row for row in step.behind(place, _BEHIND) if step.names[row] in MULTIPLIES), None)
    images = (*step.shapes[place], ())[0]
    if product is None or len(images) != 4:
        return None
    return _CostlyCalls((place, product), _CONVOLVING, " × ".join(map(str, images)))


def _quantile(step: Calls, place: int) -> _CostlyCalls | None:
    """One quantile of all numbers, for which they are sorted."""
    numbers = (*step.shapes[place], ())[0]
    one = len(step.shapes[place]) < 2 or step.shapes[place][1] in ((), (1,))
    return _CostlyCalls((place,), _SELECTING, f"{elements(numbers):,}") if numbers and one else None


def _queue(step: Calls, place: int) -> _CostlyCalls | None:
    """A long tensor and a short one are joined, and a part of the result is kept."""
    shapes = [shape for shape in step.shapes[place] if shape]
    if len(shapes) != 2 or place + 1 == len(step.names) or step.names[place + 1] not in _TAKES:
        return None
    few, many = sorted(shape[0] for shape in shapes)
    if not few or many < _QUEUE * few or step.shapes[place + 1][:1] != ((few + many, *shapes[0][1:]),):
        return None
    return _CostlyCalls((place,), _ALL, f"{many:,} rows is copied to take on {few:,}")


def _renorm(step: Calls, place: int) -> _CostlyCalls | None:
    """``nn.Embedding(max_norm=…)``."""
    table, rows = (*step.shapes[place][:2], (), ())[:2]
    if not table:
        return None
    return _CostlyCalls((place,), _ALL, f"{elements(rows):,} rows of {' × '.join(map(str, table))}")


def _factorised(step: Calls, place: int) -> _CostlyCalls | None:
    """A diagonal matrix is factorised and solved like any other, as of a normal distribution of many dimensions."""
    vector = (*step.shapes[place], ())[0]
    whole = (*vector, *vector[-1:])
    rows = [row for row in step.behind(place, len(step.names)) if whole in step.shapes[row][:2]]
    if not vector or not any(step.names[row].startswith(_FACTORISES) for row in rows):
        return None
    return _CostlyCalls((place, *rows), _ALL, " × ".join(map(str, whole)))


def _gathered(step: Calls, place: int) -> _CostlyCalls | None:
    """A layer on rows that are gathered from fewer ones and joined, as at the edges of a graph."""
    joined, layer = [shape for shape in step.shapes[place] if shape], place + 1
    if len(joined) < 2 or layer == len(step.names) or step.names[layer] != "aten::linear":
        return None
    rows, width = joined[0][0], sum(shape[-1] for shape in joined)
    if not rows * width or any(len(shape) != 2 for shape in joined) or step.shapes[layer][:1] != ((rows, width),):
        return None
    before = range(max(place - 2 * len(joined), 0), place)
    taken = [step.shapes[row][0] for row in before if step.names[row] in _GATHERS and step.shapes[row]]
    of = [shape for shape in taken if len(shape) == 2 and _FEWER * shape[0] <= rows and (rows, shape[1]) in joined]
    part = sum(shape[1] * (1 - shape[0] / rows) for shape in of) / width
    return _CostlyCalls((layer,), 0.9 * min(part, 1.0), f"{rows:,} rows of {of[0][0]:,}") if of else None


def _sequences(step: Calls, place: int) -> _CostlyCalls | None:
    """A recurrent layer that takes one sequence after the other, and what each of them has before and behind it."""
    weights = step.shapes[place][2:]

    def alike(row: int) -> bool:
        state = (*step.shapes[row][1:2], ())[0]
        return step.names[row] == step.names[place] and state[1:2] == (1,) and step.shapes[row][2:] == weights

    if any(alike(row) for row in range(place)):
        return None
    rows = tuple(row for row in range(place, len(step.names)) if alike(row))
    lengths = [sum(step.shapes[row][0]) for row in rows]
    grows = all(longer == length + 1 for length, longer in pairwise(lengths))  # each is the one before it and a token
    if len(rows) < _SEVERAL or grows:
        return None
    return _CostlyCalls(_loop(step, rows), 1 - _BATCHED / len(rows), f"{len(rows)} sequences")


def _loop(step: Calls, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Return the places of all calls of a loop that makes these, if each turn makes the same; else these alone."""
    turns = [step.names[before + 1 : row + 1] for before, row in pairwise(rows)]
    if any(one != turns[0] for one in turns):
        return rows
    pairs = zip(reversed(turns[0]), reversed(step.names[: rows[0] + 1]), strict=False)
    first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return tuple(range(rows[0] + 1 - first, rows[-1] + 1))


def _masked(step: Calls, place: int) -> _CostlyCalls | None:
    """Layers that compute all rows, of which a comparison with their number keeps some: experts of a mixture."""
    index = (*step.shapes[place], ())[0]
    if len(index) not in (1, 2) or () not in step.shapes[place][1:2]:
        return None
    rows, kept = (*index, 1)[:2]
    column = next((row for row in step.behind(place, _NEAR) if (rows, 1) in step.shapes[row][:2]), None)
    if column is None or step.names[column] != "aten::mul":
        return None
    near = range(max(place - _NEAR, 0), column)
    layers = [row for row in near if step.names[row] in _OF_EXPERTS and (*step.shapes[row], ())[0][:1] == (rows,)]
    compared = [row for row in step.places(step.names[place]) if step.shapes[row][:1] == (index,)]
    experts = len({(*texts(step.table["concrete"][row]), "", "")[1] for row in compared})
    if experts < _SEVERAL or not any(step.names[row] == "aten::linear" for row in layers):
        return None
    return _CostlyCalls(tuple(layers), max(1 - kept / experts, 0.0), f"{experts} experts compute all {rows:,}")


def _around(step: Calls, place: int, shapes: tuple[Shape, ...]) -> tuple[int, ...]:
    """Return the places of the passes around one that compute on tensors of these shapes, without a gap."""

    def passes(row: int) -> bool:
        return step.names[row] in _PASSES and broadcast(step.shapes[row]) in shapes

    first = last = place
    while first and passes(first - 1):
        first -= 1
    while last + 1 < len(step.names) and passes(last + 1):
        last += 1
    return tuple(range(first, last + 1))


def _scaled(step: Calls, place: int, rows: Shape) -> Shape:
    """Return the shape of the tensor that is divided or multiplied by one of these rows behind; empty if none is."""
    for behind in step.behind(place, _BEHIND):
        taken = step.shapes[behind][:2]
        if step.names[behind] in _SCALES and rows in taken and elements(broadcast(taken)) > elements(rows) > 1:
            return broadcast(taken)
    return ()


def _normalisation(step: Calls, place: int) -> _CostlyCalls | None:
    """Mean and variance of rows, and what they make of the rows, pass by pass."""
    rows = (*step.shapes[place], ())[0]
    whole = _scaled(step, place, rows)
    places = _around(step, place, (whole, rows)) if whole else ()
    if len(places) < _PIECES or not any(step.names[row] in _MEANS for row in places):
        return None
    return _CostlyCalls(places, _FUSED, " × ".join(map(str, whole)))


def _softmax(step: Calls, place: int) -> _CostlyCalls | None:
    """Exponentials of rows over their sum, pass by pass."""
    whole = (*step.shapes[place], ())[0]
    added = next((row for row in step.behind(place, 2) if step.names[row] == "aten::sum"), None)
    if added is None or step.shapes[added][:1] != (whole,):
        return None
    over = next((row for row in step.behind(added, 2) if step.names[row] == "aten::div"), None)
    taken = step.shapes[over][:2] if over is not None else ()
    if len(taken) < 2 or taken[0] != whole or elements(taken[1]) in (1, elements(whole)):
        return None
    return _CostlyCalls(_around(step, place, (whole, taken[1])), _ALL_PASSES, " × ".join(map(str, whole)))


def _activation(step: Calls, place: int) -> _CostlyCalls | None:
    """GELU as its formula says, pass by pass: products and sums with numbers around one tanh or erf."""
    whole = (*step.shapes[place], ())[0]
    places = _around(step, place, (whole,))
    numbers = sum(step.shapes[row][1:2] == ((),) for row in places)
    return _CostlyCalls(places, _FUSED, " × ".join(map(str, whole))) if numbers >= _NUMBERS else None


def _enlarged(step: Calls, place: int) -> _CostlyCalls | None:
    """Images are enlarged, and a convolution of 1 × 1 follows: it gives the same on the small ones."""
    layer, small = place + 1, (*step.shapes[place], ())[0]
    if layer == len(step.names) or step.names[layer] not in _CONVOLVES or len(small) != 4:
        return None
    large, weight = (*step.shapes[layer][:2], (), ())[:2]
    used_again = any(large in step.shapes[row] for row in step.behind(layer, _BEHIND))
    if weight[2:] != (1, 1) or large[:2] != small[:2] or weight[1] != small[1] or used_again:
        return None
    enlarging, convolving = (float(step.table["time"][row]) for row in (place, layer))
    saved = enlarging * (1 - weight[0] / small[1]) + convolving * (1 - elements(small) / elements(large))
    part = saved / max(enlarging + convolving, 1e-9)
    return _CostlyCalls((place, layer), part, " × ".join(map(str, large))) if part > 0 else None


def _spectrum(step: Calls, place: int) -> _CostlyCalls | None:
    """A convolution of one channel with as many filters as a Fourier transform of their length has frequencies."""
    signal, weight = (*step.shapes[place][:2], (), ())[:2]
    if len(signal) != 3 or len(weight) != 3 or signal[1] != 1 or weight[2] < _TAPS:
        return None
    filters, taps = weight[0], weight[2]
    if filters not in (taps, taps // 2 + 1, taps + 2):
        return None
    part = 1 - _FOURIER * log2(taps) / filters
    return _CostlyCalls((place,), part, f"{taps:,} samples") if part > 0 else None


def _growing(step: Calls, place: int) -> _CostlyCalls | None:
    """A model without gradients goes over a sequence again for each token that it adds to it."""
    passes, rows = [place], step.places(step.names[place])
    table, tokens = (*step.shapes[place][:2], (), ())[:2]
    if not tokens or not _GROWS <= len(rows) <= _GENERATED:
        return None
    for row in rows:
        if row > passes[-1] and step.shapes[row][:2] == (table, (*tokens[:-1], tokens[-1] + len(passes))):
            passes.append(row)
    before = (table, (*tokens[:-1], tokens[-1] - 1))
    if len(passes) < _GROWS or any(step.shapes[row][:2] == before for row in rows):
        return None
    places = range(place, min(passes[-1] + passes[-1] - passes[-2], len(step.names)))
    if not (step.table["phase"][list(places)] == "other").all():
        return None
    part = (1 - _KEPT) * (1 - 1 / len(passes))
    return _CostlyCalls(tuple(places), part, f"{tokens[-1]:,} tokens and more {len(passes)} times")


_KINDS = {
    "enlarged": _CostlyForm(
        _ENLARGES, _enlarged, "a convolution of 1 × 1 takes images that were enlarged to {}",
        "Convolve first, then enlarge: F.interpolate(conv(x), …) is conv(F.interpolate(x, …)) where the kernel is "
        "1 × 1.",
    ),
    "spectrum": _CostlyForm(
        ("aten::conv1d",), _spectrum, "a convolution makes spectra of {} as products with all of them",
        "torch.stft(x, n_fft, hop_length, window=…, return_complex=True) takes the fast Fourier transform.",
    ),
    "growing": _CostlyForm(
        ("aten::embedding",), _growing, "a model goes over {}, once for each token that it adds",
        "Keep keys and values of the tokens before (use_cache=True, past_key_values of transformers), and give the "
        "model the new token alone.",
        backward=False,
    ),
    "diagonal": _CostlyForm(
        _DIAGONALS, _diagonal, "a product with a diagonal matrix of {} scales rows or columns",
        "Multiply by the vector: x * w instead of x @ torch.diag(w), and w[:, None] * x instead of torch.diag(w) @ x.",
    ),
    "order": _CostlyForm(
        MULTIPLIES, _order, "two products come in the order that takes more multiplications: {}",
        "Multiply in the other order: q @ (k.transpose(-2, -1) @ v) instead of (q @ k.transpose(-2, -1)) @ v; "
        "torch.linalg.multi_dot chooses it for matrices.",
    ),
    "factorised": _CostlyForm(
        ("aten::diag_embed",), _factorised, "diagonal matrices of {} are factorised and solved as if they were full",
        "Work on the diagonals: torch.distributions.Independent(Normal(mean, scale), 1) instead of "
        "MultivariateNormal(mean, torch.diag_embed(scale ** 2)); b / d solves diag(d) x = b.",
    ),
    "gathered": _CostlyForm(
        _JOINS, _gathered, "a layer computes on {} that are gathered and joined",
        "Compute before you gather: split the weight, (h @ w1.T)[source] + (h @ w2.T)[target] instead of "
        "linear(torch.cat([h[source], h[target]], 1)).",
    ),
    "sequences": _CostlyForm(
        _RECURRENT, _sequences, "a recurrent layer takes {} one after the other",
        "Take them together: torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True), with "
        "pack_padded_sequence where their lengths differ much, and one call of the layer.",
    ),
    "masked": _CostlyForm(
        ("aten::eq",), _masked, "{} rows, of which a mask keeps few",
        "Give each expert its rows: rows = (top == expert).nonzero().squeeze(1); "
        "y = y.index_add(0, rows, experts[expert](x[rows])).",
    ),
    "inverse": _CostlyForm(
        _INVERSES, _inverse, "a matrix of {} is inverted for a product",
        "Solve the equations: torch.linalg.solve(a, b) instead of torch.linalg.inv(a) @ b; of a covariance, "
        "torch.cholesky_solve(b, torch.linalg.cholesky(a)). Instead of pinv: torch.linalg.lstsq(a, b).solution.",
    ),
    "largest": _CostlyForm(
        (*_SINGULAR, *_NORMS), _largest,
        "all singular values or eigenvalues of matrices of {} are computed, and one is used",
        "A few products give the largest: torch.nn.utils.parametrizations.spectral_norm(layer), or a power iteration "
        "that begins with the vector of the step before.",
    ),
    "repeated": _CostlyForm(
        _REPEATS, _repeated, "a tensor is repeated to {} for an operator that takes it as it is",
        "Leave the repetition out: operators broadcast sizes of 1 (x + bias.unsqueeze(0)); x.expand(n, -1, -1) copies "
        "nothing where a shape has to be said.",
        backward=False,
    ),
    "convolution": _CostlyForm(
        _WINDOWS, _convolution, "windows of {} are copied and multiplied: a convolution by hand",
        "torch.nn.functional.conv2d(x, weight.view(out, channels, height, width), padding=…) copies no windows.",
    ),
    "quantile": _CostlyForm(
        _QUANTILES, _quantile, "{} numbers are sorted for one quantile",
        "torch.kthvalue(x.flatten(), k).values finds the k-th without sorting; a part of the numbers often is enough.",
    ),
    "queue": _CostlyForm(
        _JOINS, _queue, "a queue of {}",
        "Write into the queue: queue[place : place + n] = x; place = (place + n) % len(queue).",
        backward=False,
    ),
    "normalisation": _CostlyForm(
        ("aten::sqrt", "aten::rsqrt"), _normalisation, "a normalisation of {} goes over its numbers pass by pass",
        "One call does it: torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias), rms_norm, group_norm, "
        "batch_norm.",
    ),
    "softmax": _CostlyForm(
        ("aten::exp",), _softmax, "a softmax of {} goes over its numbers pass by pass",
        "One call does it: torch.nn.functional.softmax(x, -1), and without the logarithm of small numbers: log_softmax "
        "or cross_entropy(x, target).",
    ),
    "activation": _CostlyForm(
        ("aten::tanh", "aten::erf"), _activation, "an activation of {} goes over its numbers pass by pass",
        'One call does it: torch.nn.functional.gelu(x), or gelu(x, approximate="tanh").',
    ),
    "renorm": _CostlyForm(
        _RENORMS, _renorm, "an embedding with max_norm looks at {}, one after the other",
        "Leave max_norm out, and bound all rows at once in some steps: with torch.no_grad(): "
        "weight.copy_(weight.renorm(2, 0, 1.0)); or divide by the norm what is looked up.",
    ),
}  # fmt: skip

#: Operators at which one begins to look.
BEGINS = tuple(sorted({name for kind in _KINDS.values() for name in kind.begins}))
