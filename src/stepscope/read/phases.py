"""Which part of the training step a span belongs to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.nesting import Integers, inherit
from stepscope.read.timeline import Timeline
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import dtype

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
    "c10d::": _CODE["communication"],
}


def phases(timeline: Timeline, flows: pl.DataFrame, launch: Integers) -> pl.Series:
    """Return the phase of each span; null where it cannot be told.

    Backward is what the autograd engine evaluates, or what belongs to a forward operator elsewhere; forward is an
    operator that a backward belongs to; the optimizer's step, waiting for data and communication say so themselves,
    and so does whatever the reader of its file knows the phase of (``said_phase``).
    What a span contains or launches belongs to the same phase. Other operators, and what they contain and launch, are
    ``other``.
    """
    drawn = flows.filter(flows["kind"] == "forward_backward")
    result = inherit(timeline.parent, _own(timeline, drawn["to"].to_numpy()))
    for places, phase in ((drawn["from"].to_numpy(), "forward"), (timeline.of_kinds("operator"), "other")):
        weaker = np.full(len(timeline), -1, np.int8)
        weaker[places] = _CODE[phase]
        result = np.where(result >= 0, result, inherit(timeline.parent, weaker))
    launched = (launch >= 0) & ~timeline.of_kinds("collective")
    result[launched] = result[launch[launched]]
    result[result < 0] = len(PHASES)
    return _VALUES[pl.Series(result.view(np.uint8))]


def _own(timeline: Timeline, backward: Integers) -> _Phases:
    """Return the phase that each span says of itself."""
    own = np.full(len(timeline), -1, np.int8)
    own[backward] = _CODE["backward"]
    forward_thread, said = timeline.given("forward_thread"), timeline.given("said_phase")
    if forward_thread is not None:
        own[(forward_thread > 0).fill_null(value=False).to_numpy() & timeline.of_kinds("operator")] = _CODE["backward"]
    named = _named(timeline)
    own[named >= 0] = named[named >= 0]
    if said is not None:
        own = np.where(said.is_not_null().to_numpy(), said.to_physical().cast(pl.Int8).fill_null(-1).to_numpy(), own)
    own[timeline.of_kinds("data")] = _CODE["data"]
    own[timeline.of_kinds("collective") | (named == _CODE["communication"])] = _CODE["communication"]
    return own


def _named(timeline: Timeline) -> _Phases:
    """Return the phase that the names of host spans say; each distinct name is looked at once."""
    names = timeline.spans["name"]
    distinct = names.unique()
    codes = distinct.to_physical().to_numpy()
    phase_of = np.full(int(codes.max(initial=0)) + 1, -1, np.int8)
    for code, text in zip(codes.tolist(), distinct.to_list(), strict=True):
        phase_of[code] = next((phase for prefix, phase in _NAMED.items() if text.startswith(prefix)), -1)
    if (phase_of < 0).all():
        return np.broadcast_to(np.int8(-1), len(timeline))
    return np.where(timeline.on_device, np.int8(-1), phase_of[names.to_physical().to_numpy()])
