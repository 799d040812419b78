"""Iterations that call small operators of the same shapes again and again, such as the steps of a solver."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stepscope.advise.calls import (
    PARAMETRIC,
    explained_within,
    in_order,
    of_step,
    recorded_calls,
    with_backward,
)
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.analyse.quantities import duration_text

#: Calls of an operator with the same shapes in a step that are iterations; and calls of such operators that are many.
_REPEATS, _MANY = 32, 64
#: Products of matrices, which compute; loops over them are told as such.
_PRODUCTS = ("aten::matmul", "aten::mm", "aten::bmm")
#: A call that takes longer, ns, is not dominated by the call itself.
_SMALL_NS = 30_000
#: Part that such calls are of the operators outside of backward, optimizer and loading; of the step to be told.
_MOST, _TOLD = 0.6, 0.1
#: Parts of their time that a compiled function saves, or one operator for all iterations: least, usual, most.
_SAVED = (0.25, 0.55, 0.8)


def small_iterations(observed: Observed) -> Iterator[Claim]:
    """Yield the small operators that a step of PyTorch repeats on a CPU, other than layers and matrix products."""
    steps = observed.summary.steps.count
    if observed.framework != "torch" or observed.summary.on_device or not steps:
        return
    calls = recorded_calls(observed)
    # Operators without gradients, such as those of a power iteration, have no phase.
    computing = calls.filter(pl.col("phase").is_in(["forward", "other"]) & (pl.col("outer") < 0))
    often = (pl.len().over("name", "shapes") >= _REPEATS * steps) & pl.col("shapes").is_not_null()
    repeated = computing.filter(often & ~pl.col("name").is_in([*PARAMETRIC, *_PRODUCTS]))
    many, computed = len(repeated) / steps, float(repeated["time"].sum())
    if many < _MANY or computed / many > _SMALL_NS or computed < _MOST * float(computing["time"].sum()):
        return
    ran = with_backward(calls, repeated)
    time = float(in_order(observed, calls).join(ran, on="row", how="semi")["until"].sum())
    low, gain, high = (part * time for part in _SAVED)
    if observed.share(gain) < _TOLD:
        return
    beside = pl.col("phase").is_in(["backward", "optimizer", "data", "evaluation"]).fill_null(value=False)
    followed = ", and their backward" if len(ran) > len(repeated) else ""
    names = repeated["name"].value_counts(sort=True)["name"].to_list()[:3]
    finding = Finding(
        cause="many-small-operators",
        title=f"{of_step(observed, time)} the step repeats {many:.0f} small operators on tensors of the same shapes"
        f"{followed}{observed.most_seen(observed.looks.filter(~beside))}",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(high),
        basis="the time from operator to operator of the iterations and their part of the backward, of which a "
        "compiled function saves about half",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{', '.join(names)} most of all, {duration_text(computed / many)} each", value=many,
                     result="operator_details", operator=names[0]),
        ),
        remedy="Compute all iterations at once where each does not need the one before it, or where an operator does "
        "so (torch.cumsum, torch.cumprod); else compile the function that iterates: torch.compile(function). Fewer "
        "iterations, or ones that need no gradient (torch.no_grad()), save their part.",
        operator=names[0],
    )  # fmt: skip
    yield Claim(finding, Depth.PLACE, explained_within(calls, ran))
