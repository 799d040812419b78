"""Which part of the training step a span belongs to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.nesting import Integers, inherit
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import codes, dtype

#: Number of the phase of each span; −1 where it has none.
_Phases: TypeAlias = npt.NDArray[np.int8]

#: The phases, and null.
_VALUES = pl.Series("phase", [*PHASES, None], dtype("enum:phase"))
_CODE = {name: code for code, name in enumerate(PHASES)}
#: What the names of host spans begin with: nodes of autograd, steps of the optimizer, and the calls of
#: torch.distributed; the waiting one lasts until the backend's thread is done.
_NAMED = {
    "autograd::engine::evaluate_function": _CODE["backward"],
    "Optimizer.step#": _CODE["optimizer"],
    "Optimizer.zero_grad#": _CODE["optimizer"],
    "c10d::": _CODE["communication"],
}


def phases(timeline: RankTimeline, flows: pl.DataFrame, launch: Integers) -> pl.Series:
    """Return the phase of each span; null if unknown.

    Backward is what the autograd engine evaluates, or what belongs to a forward operator elsewhere; forward is an
    operator that a backward belongs to; the optimizer's step, waiting for data and communication say so themselves,
    and so does whatever the reader of its file knows the phase of (``said_phase``).
    What a span contains or launches belongs to the same phase, and so does the operator around a forward operator with
    all that it contains. Other operators, and what they contain and launch, are ``other``.
    A forward inside the optimizer's step is that of a closure, in which Lightning runs forward and backward.
    """
    drawn = (flows["kind"] == "forward_backward").to_numpy()
    begin, backward = (flows[end].to_numpy()[drawn] for end in ("from", "to"))
    own = _own(timeline, backward)
    # A range of a collective that outlives its caller ends when the data is there: what begins in it is not its work.
    outlives = timeline.crossing & (own == _CODE["communication"])
    result = inherit(timeline.parent, np.where(outlives, np.int8(-1), own))
    result[outlives] = _CODE["communication"]
    operators = timeline.of_kinds("operator")
    forward = _with_operators_around(begin, timeline.parent, operators)
    closure = np.where(forward & (result == _CODE["optimizer"]), np.int8(_CODE["forward"]), np.int8(-1))
    if (closure >= 0).any():
        closure = inherit(timeline.parent, closure)
        result = np.where((closure >= 0) & (result == _CODE["optimizer"]), closure, result)
    for places, phase in ((forward, "forward"), (operators, "other")):
        weaker = np.full(len(timeline), -1, np.int8)
        weaker[places] = _CODE[phase]
        result = np.where(result >= 0, result, inherit(timeline.parent, weaker))
    launched = (launch >= 0) & ~timeline.of_kinds("collective")
    result[launched] = result[launch[launched]]
    result[result < 0] = len(PHASES)
    return _VALUES[pl.Series(result.view(np.uint8))]


def _with_operators_around(
    inner: Integers, parent: Integers, operators: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which spans are among ``inner`` or are operators around them, without a span of another kind between."""
    found = np.zeros(len(parent), np.bool_)
    while len(inner):
        found[inner] = True
        around = np.unique(parent[inner])
        around = around[around >= 0]
        inner = around[operators[around] & ~found[around]]
    return found


def _own(timeline: RankTimeline, backward: Integers) -> _Phases:
    """Return the phase that each span says of itself."""
    own = np.full(len(timeline), -1, np.int8)
    own[backward] = _CODE["backward"]
    said = timeline.given("said_phase")
    if timeline.given("forward_thread") is not None:
        own[(timeline.integers("forward_thread")[0] > 0) & timeline.of_kinds("operator")] = _CODE["backward"]
    named = np.where(timeline.on_device, np.int8(-1), timeline.named(_NAMED))
    own[named >= 0] = named[named >= 0]
    if said is not None:
        numbers = codes(said)[0].astype(np.int8)
        own = np.where(numbers >= 0, numbers, own)
    own[timeline.of_kinds("data")] = _CODE["data"]
    own[timeline.of_kinds("collective") | (named == _CODE["communication"])] = _CODE["communication"]
    return own
