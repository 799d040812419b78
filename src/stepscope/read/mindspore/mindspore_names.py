"""What the full name of a MindSpore operator says: its type, its cells, its part of the step, its communication.

``Gradients/Default/network-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op0`` is the operator ``MatMul`` of
the cells ``network-WithLossCell/_backbone-Net/fc-Dense``, in the backward pass. Compiled graphs name every operator
so. In PyNative an operator has no cells, and forward and backward have the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"-op\d+$")
_ROOTS = frozenset({"Default", "Gradients"})
# A cell that optimises, by its attribute or its class: optimizer-Momentum, opt-MyOptimizer.
_OPTIMIZER_CELL = re.compile(
    r"_?opt(?:imizer)?-|[^-]*-(?:\w*Optimizer|Momentum|A?SGD|RMSProp|Rprop|Lamb|LARS|FTRL|LazyAdam|Ada[mM]\w*"
    r"|Ada(?:delta|grad|Factor)|ProximalAdagrad)$"
)
# Operators that change parameters, whatever cell they are in.
_OPTIMIZER_TYPE = re.compile(
    r"(?:Sparse|Fused|Group)*(?:Apply[A-Z]\w*|Ada[mM]\w*|Lamb\w*|LARSUpdate|SGD|Momentum|CastAdamWeightDecay)$"
)
_BACKWARD_TYPE = re.compile(r"\w+(?:Grad|GradV2|GradGrad|GradExt|Backprop(?:Filter|Input)|Backward)$")
#: Operation, as the table ``collectives`` calls it, by MindSpore's name in lower case without its prefixes.
_OPERATIONS = {
    "allreduce": "allreduce", "reduce": "reduce", "broadcast": "broadcast", "barrier": "barrier",
    "allgather": "allgather", "allgatherv": "allgather", "allgatherintotensor": "allgather",
    "reducescatter": "reduce_scatter", "reducescatterv": "reduce_scatter", "reducescattertensor": "reduce_scatter",
    "alltoall": "alltoall", "alltoallv": "alltoall", "alltoallvc": "alltoall", "alltoallsingle": "alltoall",
    "neighborexchange": "neighbor_exchange", "neighborexchangev2": "neighbor_exchange",
    "collectivescatter": "scatter", "collectivegather": "gather",
    "send": "send", "isend": "send", "receive": "recv", "irecv": "recv", "batchisendirecv": "batch_send_recv",
}  # fmt: skip
_COMMUNICATION_PREFIX = re.compile(r"(?:InnerComm|DistComm|Comm)(?=[A-Z])")


@dataclass(frozen=True)
class OperatorName:
    """What a full name says.

    Attributes:
        short: Name within its cell: ``MatMul-op0``.
        type: Type of the operator: ``MatMul``.
        module: Its cells, outermost first, separated by ``/``; None where the name has none.
        phase: ``forward``, ``backward``, ``optimizer`` or ``communication``; None if the name does not say it.
        operation: For communication, the operation as the table ``collectives`` calls it; else None.
    """

    short: str
    type: str
    module: str | None
    phase: str | None
    operation: str | None


def parse(full: str, *, compiled: bool = False) -> OperatorName:
    """Return what a full name says.

    Args:
        full: Name as MindSpore's profiler writes it.
        compiled: Whether all operators belong to compiled graphs, so that one without ``Gradients`` is forward.
    """
    *path, short = full.split("/")
    kind = _NUMBER.sub("", short) or short
    backward = "Gradients" in path
    cells = [part for part in path if part not in _ROOTS and not part.startswith("Grad_")]
    operation = _operation(kind)
    scoped = bool(cells) or (compiled and "Default" in path)
    phase = "communication" if operation else _phase(kind, cells, backward=backward, scoped=scoped)
    return OperatorName(short, kind, "/".join(cells) or None, phase, operation)


def _phase(kind: str, cells: list[str], *, backward: bool, scoped: bool) -> str | None:
    if any(map(_OPTIMIZER_CELL.match, cells)) or _OPTIMIZER_TYPE.match(kind):
        return "optimizer"
    if backward or (not scoped and _BACKWARD_TYPE.match(kind)):
        return "backward"
    return "forward" if scoped else None


def _operation(kind: str) -> str | None:
    prefix = _COMMUNICATION_PREFIX.match(kind)
    bare = kind[prefix.end() :].lower() if prefix else kind.lower()
    if prefix and bare in ("scatter", "gather"):  # without the prefix these compute
        return bare
    # Types are spelled in capitals; "send" or "reduce" in small letters is a name that somebody gave.
    return _OPERATIONS.get(bare) if kind[:1].isupper() else None
