"""Classify the spans of a recorded run as events of ``paddle.fluid.profiler``, and name them as it does."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.paddle.paddle_tables import CONTAINER

_Integers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

#: Types of operators as Paddle 3 writes them: of a program, and of eager mode. In-place ones have a `_` at the end.
_PADDLE_TYPE = re.compile(r"^(?:\w+_op\.(\w+?)_?|(\w+?)_? dygraph)$")
#: The operator of a gradient: `Global_Conv2dGradNodeFinal` is `conv2d_grad`.
_GRADIENT = re.compile(r"^Global_(\w+?)GradNode(?:Final)?$")
_INNER_CAPITAL = re.compile(r"(?<!^)(?<!_)(?=[A-Z])")
#: Name prefix of the range that PyTorch puts around the operator of a gradient.
_AROUND_GRADIENT = "autograd::engine::evaluate_function: "

#: Parts of an operator: Paddle 1.8's name of each, and the names of the spans that it covers.
_PARTS = (
    ("compute", re.compile(r"^(?:\S+ kernel launch|compute)$")),
    ("infer_shape", re.compile(r"^(?:\S+ infer_meta|PhiKernelInstruction::infermeta|infer_shape)$")),
    ("prepare_data", re.compile(r"^(?:\S+ )?prepare_data$")),
    ("node_creation", re.compile(r"^\S+ node_creation$")),
)
#: Paddle's own ranges that are not events: each holds exactly one operator, or all of them.
_OWN = re.compile(rf"^(?:\S+ pybind_imperative_func|Local_\w+|default-\d+|[A-Z]\w*::\w+)$|{CONTAINER}")
_COPY = re.compile(r"^cu(?:da)?Memcpy")


@dataclass(frozen=True, eq=False)
class Labels:
    """The class and the label of every span on a host thread; arrays are in order of rows.

    Attributes:
        operator: Whether the span is an operator; a span that only wraps an operator is not.
        outside: Whether the span is an event if no operator encloses it.
        part: Whether the span is an event if an operator encloses it.
        outer_label: Index in ``texts`` of its label outside operators.
        inner_label: Index in ``texts`` of its label inside an operator.
        texts: The distinct labels.
        tells_parts: Whether operators have ``compute`` parts.
    """

    operator: _Flags
    outside: _Flags
    part: _Flags
    outer_label: _Integers
    inner_label: _Integers
    texts: list[str]
    tells_parts: bool


def labels_of(host: pl.DataFrame, parent: _Integers) -> Labels:
    """Classify and label spans.

    Args:
        host: Spans on host threads: ``name`` and ``kind`` as texts.
        parent: Row of the enclosing span of each; −1 for none.
    """
    distinct = host.select("name", "kind").unique(maintain_order=True)
    # A slash separates an event from its part, so a slash inside a name is replaced.
    fields = [_classify(name.replace("/", "|"), kind) for name, kind in distinct.iter_rows()]
    columns = ("operator", "outside", "part", "outer", "inner")
    known = distinct.with_columns(
        pl.Series(column, values, dtype=pl.String if column in ("outer", "inner") else pl.Boolean)
        for column, values in zip(columns, zip(*fields, strict=True) if fields else ((),) * len(columns), strict=True)
    )
    rows = host.select("name", "kind").join(known, on=["name", "kind"], how="left", maintain_order="left")
    texts = pl.concat([known["outer"], known["inner"]]).unique(maintain_order=True)
    number = {text: index for index, text in enumerate(texts)}
    outer, inner = (
        rows[column].replace_strict(number, return_dtype=pl.Int64).to_numpy().astype(np.int64) for column in columns[3:]
    )
    operator, outside, part = (rows[column].to_numpy().astype(bool) for column in columns[:3])
    # Paddle's own range `backward` lies directly in the phase of that name.
    phases = (host["kind"] == "phase").to_numpy()
    outside &= ~((host["name"] == "backward").to_numpy() & (parent >= 0) & phases[parent])
    return Labels(operator, outside, part, outer, inner, texts.to_list(), bool((rows["inner"] == "compute").any()))


def _classify(name: str, kind: str) -> tuple[bool, bool, bool, str, str]:
    """Return the fields of :class:`Labels` for a span: operator, outside, part, outer label, inner label."""
    if kind in ("operator", "collective") and not name.startswith(_AROUND_GRADIENT):
        label = _operator_type(name)
        return True, True, True, label, label
    if kind == "annotation":
        part = next((part for part, pattern in _PARTS if pattern.match(name)), None)
        own = part is not None or _OWN.match(name) is not None
        return False, not own, part is not None or not own, name, part or name
    if kind in ("runtime", "driver") and _COPY.match(name):
        return False, False, True, name, "GpuMemcpyAsync" if "Async" in name else "GpuMemcpySync"
    return False, False, False, name, name


def _operator_type(name: str) -> str:
    found = _PADDLE_TYPE.match(name)
    if found is not None:
        return found[1] or found[2]
    gradient = _GRADIENT.match(name)
    if gradient is not None:
        return f"{_INNER_CAPITAL.sub('_', gradient[1]).lower()}_grad"
    return name.removeprefix("Global_")
