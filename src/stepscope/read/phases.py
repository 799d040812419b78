"""Which part of the training step a span belongs to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.nesting import Integers, inherit
from stepscope.read.timeline import Timeline
from stepscope.trace.schema import PHASES
from stepscope.trace.tables import dtype

_CODE = {name: code for code, name in enumerate(PHASES)}
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer.step#"
#: PyTorch's namespace of the calls of torch.distributed; the waiting one lasts until the backend's thread is done.
_DISTRIBUTED = "c10d::"


def phases(timeline: Timeline, flows: pl.DataFrame, launch: Integers) -> pl.Series:
    """Return the phase of each span; null where it cannot be told.

    Backward is what the autograd engine evaluates, or what belongs to a forward operator elsewhere; forward is an
    operator that a backward belongs to; the optimizer's step, waiting for data and communication say so themselves,
    and so does whatever the reader of its file knows the phase of (``said_phase``).
    What a span contains or launches belongs to the same phase. Other operators, and what they contain and launch, are
    ``other``.
    """
    strong = inherit(timeline.nesting.parent, _own(timeline, flows))
    forward = np.full(len(strong), -1, np.int64)
    drawn = flows.filter(pl.col("kind") == "forward_backward")
    forward[drawn["from"].to_numpy()] = _CODE["forward"]
    result = np.where(strong >= 0, strong, inherit(timeline.nesting.parent, forward))
    result[(result < 0) & (timeline.nearest(timeline.of_kinds("operator")) >= 0)] = _CODE["other"]
    launched = (launch >= 0) & ~timeline.of_kinds("collective")
    result[launched] = result[launch[launched]]
    values = pl.Series(list(PHASES), dtype=dtype("enum:phase"))
    return values.gather(pl.Series(result).cast(pl.Int64).replace(-1, None))


def _own(timeline: Timeline, flows: pl.DataFrame) -> Integers:
    """Return the phase that each span says of itself; −1 where it says none."""
    own = np.full(timeline.spans.height, -1, np.int64)
    drawn = flows.filter(pl.col("kind") == "forward_backward")
    own[drawn["to"].to_numpy()] = _CODE["backward"]
    forward_thread = timeline.spans["forward_thread"].fill_null(0).to_numpy()
    own[(forward_thread > 0) & timeline.of_kinds("operator")] = _CODE["backward"]
    own[_named(timeline, _BACKWARD)] = _CODE["backward"]
    own[_named(timeline, _OPTIMIZER)] = _CODE["optimizer"]
    said = timeline.spans["said_phase"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    own[said >= 0] = said[said >= 0]
    own[timeline.of_kinds("data")] = _CODE["data"]
    own[timeline.of_kinds("collective") | _named(timeline, _DISTRIBUTED)] = _CODE["communication"]
    return own


def _named(timeline: Timeline, prefix: str) -> npt.NDArray[np.bool_]:
    """Return which host spans have names that begin so; each distinct name is looked at once."""
    names = timeline.spans["name"]
    distinct = names.unique()
    matching = distinct.filter(distinct.cast(pl.String).str.starts_with(prefix)).to_physical().to_numpy()
    if not len(matching):
        return np.zeros(len(names), np.bool_)
    codes = names.to_physical().to_numpy()
    chosen = np.zeros(int(codes.max()) + 1, np.bool_)
    chosen[matching] = True
    result: npt.NDArray[np.bool_] = chosen[codes] & ~timeline.on_device
    return result
