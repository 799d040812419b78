"""Ranges of NVTX → spans: what PyTorch's ``emit_nvtx`` writes are operators, others are the user's."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.read.common.distinct import combinations
from stepscope.read.common.torch_events import kind_of, name_class
from stepscope.trace.schema import KINDS

#: How ``torch.autograd.profiler.emit_nvtx`` names a range: operator, and what it knows of the call.
_EMITTED = re.compile(
    r"(?P<name>.+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = (?P<external>\d{1,18}))?"
    r"(?:, sizes = (?P<shapes>\[.*?\]))?(?:, input_op_ids = \[.*\])?",
    re.DOTALL,
)
_BACKWARD = re.compile(r"autograd::engine::evaluate_function|.*Backward\d*\Z")
_OPERATOR = re.compile(r"\w+::[^ ]|.*Backward\d*\Z")
_KINDS = tuple(KINDS)


class _NvtxRange(NamedTuple):
    """What the text of a range says."""

    name: str
    kind: str
    sequence: int | None = None
    external: int | None = None
    shapes: str | None = None


def _said(text: str | None) -> _NvtxRange:
    match = _EMITTED.fullmatch(text or "")
    if match is None:
        return _NvtxRange(text or "range", "annotation")
    name, shapes = match["name"], match["shapes"]
    number = {key: int(match[key]) if match[key] else None for key in ("sequence", "external")}
    emitted = shapes is not None or any(value is not None for value in number.values())
    category = "cpu_op" if _OPERATOR.match(name) and (emitted or name.startswith(("aten::", "autograd::"))) else ""
    return _NvtxRange(name, _KINDS[kind_of(category, name_class(name))], **number, shapes=_json(shapes))


def _json(shapes: str | None) -> str | None:
    try:
        return None if shapes is None else json.dumps(json.loads(shapes), separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def ranges(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``name``, ``kind``, ``sequence``, ``external``, ``shapes`` and ``forward_thread`` of ranges.

    The thread of the forward operator is that of the last one with the sequence number that the backward operator has.

    Args:
        rows: Columns ``text``, the text of each range, and ``thread``.
    """
    distinct, which = combinations(rows["text"])
    said = [_said(text) for (text,) in distinct]
    place = pl.Series(which, dtype=pl.UInt32)
    kinds = {"name": pl.Categorical(), "kind": pl.String(), "sequence": pl.Int64(), "external": pl.Int64()}
    columns = {
        name: pl.Series(name, [getattr(one, name) for one in said], kind)[place]
        for name, kind in {**kinds, "shapes": pl.Categorical()}.items()
    }
    backward = np.array([_BACKWARD.match(one.name) is not None for one in said], np.bool_)[which]
    sequence, threads = columns["sequence"].to_list(), rows["thread"].to_list()
    numbered = columns["sequence"].is_not_null().to_numpy()
    forward = {sequence[row]: threads[row] for row in np.flatnonzero(numbered & ~backward).tolist()}
    of_forward: list[int | None] = [None] * len(rows)
    for row in np.flatnonzero(numbered & backward).tolist():
        of_forward[row] = forward.get(sequence[row])
    return pl.DataFrame([*columns.values(), pl.Series("forward_thread", of_forward, dtype=pl.Int64)])
