"""A model that runs again for each derivative of one output, as where a loss is made of a differential equation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import polars as pl

from stepscope.advise.calls import broadcast
from stepscope.advise.forms import Calls, Form, Shape

_LAYERS = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d")
#: Sums up a gradient of a weight: what ``backward`` does, and ``torch.autograd.grad`` does not.
_ACCUMULATES = "torch::autograd::AccumulateGrad"
#: Operators that make other data, or other weights, of what a pass has given: the next pass is another one.
_CHANGES = {f"aten::{name}{end}" for name in ("add", "sub", "mul", "addcmul", "clamp", "lerp") for end in ("", "_")}


def repeated_passes(steps: Iterable[pl.DataFrame]) -> list[Form]:
    """Return the passes of these steps that are alike, with gradients taken between them, as one form.

    Args:
        steps: All calls of a thread in a step, in the order of time, for each.
    """
    found = [(calls, times) for step in steps for calls, times in _alike(step)]
    if not found:
        return []
    times = max(times for _, times in found)
    return [
        Form(
            "costly-form", pl.concat([calls for calls, _ in found]), 1 - 1 / times,
            f"the model runs {times} times on data of one size, with gradients by torch.autograd.grad in between",
            "Compute the output once and take every derivative of it: y = model(x); "
            "dx, dt = torch.autograd.grad(y, (x, t), torch.ones_like(y), create_graph=True).",
        )
    ]  # fmt: skip


def _alike(step: pl.DataFrame) -> list[tuple[pl.DataFrame, int]]:
    """Return the calls of the passes of a step before its first gradients of weights, and how many these are."""
    sums = step.filter(pl.col("name") == _ACCUMULATES)["ts"]
    top = step.filter((pl.col("outer") < 0) & (pl.col("ts") < (sums.min() if len(sums) else 0)))
    taken = top.filter(pl.col("phase") == "backward")["ts"]
    calls = Calls.of(top.filter(pl.col("phase").is_in(["forward", "other"])))
    layers = [place for place in calls.places(*_LAYERS) if calls.shapes[place]]  # without shapes, all look alike
    if taken.is_empty() or not layers:
        return []
    first, kinds = layers[0], list(zip(calls.names, calls.shapes, strict=True))
    again = [place for place in layers if kinds[place] == kinds[first]]
    begin, end = calls.table["ts"][again[0]], calls.table["ts"][again[-1]]
    weights: set[Shape] = {calls.shapes[place][1] for place in layers if len(calls.shapes[place]) > 1}
    kept = {*weights, *calls.shapes[first][:1]}
    changed = any(
        calls.names[place] in _CHANGES and broadcast(calls.shapes[place]) in kept
        for place in range(again[0], again[-1])
    )
    if len(again) < 2 or changed or taken.is_between(begin, end).sum() == 0:
        return []
    counts = Counter(kinds)
    rows = [place for place in range(again[0], len(kinds)) if counts[kinds[place]] % len(again) == 0]
    return [(calls.table[rows], len(again))]
