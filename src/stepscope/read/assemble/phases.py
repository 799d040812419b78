"""Which part of the training step a span belongs to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.nesting import Integers, inherit
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


def phases(timeline: RankTimeline, flows: pl.DataFrame, launch: Integers) -> pl.Series:
    """Return the phase of each span; null if unknown.

    Backward is what the autograd engine evaluates, or what belongs to a forward operator elsewhere; forward is an
    operator that a backward belongs to; the optimizer's step, waiting for data and communication say so themselves,
    and so does whatever the reader of its file knows the phase of (``said_phase``).
    What a span contains or launches belongs to the same phase. Other operators, and what they contain and launch, are
    ``other``.
    """
    drawn = flows[np.flatnonzero(flows["kind"] == "forward_backward")]
    result = inherit(timeline.parent, _own(timeline, drawn["to"].to_numpy()))
    for places, phase in ((drawn["from"].to_numpy(), "forward"), (timeline.of_kinds("operator"), "other")):
        weaker = np.full(len(timeline), -1, np.int8)
        weaker[places] = _CODE[phase]
        result = np.where(result >= 0, result, inherit(timeline.parent, weaker))
    launched = (launch >= 0) & ~timeline.of_kinds("collective")
    result[launched] = result[launch[launched]]
    result[result < 0] = len(PHASES)
    return _VALUES[pl.Series(result.view(np.uint8))]


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
        own = np.where(said.is_not_null().to_numpy(), said.to_physical().cast(pl.Int8).fill_null(-1).to_numpy(), own)
    own[timeline.of_kinds("data")] = _CODE["data"]
    own[timeline.of_kinds("collective") | (named == _CODE["communication"])] = _CODE["communication"]
    return own
