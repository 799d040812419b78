"""Part of the training step that each instruction of a compiled program belongs to.

JAX writes the transformations of a function into the scope of what it makes: ``jvp(…)`` where the function is followed
with its derivatives, ``transpose(jvp(…))`` where these are taken back. In a program with a backward pass, an
instruction outside both is not part of the loss: it belongs to the optimizer if it takes a result of the backward
pass.
"""

from __future__ import annotations

from stepscope.read.xplane.hlo.hlo_collectives import OPERATIONS
from stepscope.read.xplane.hlo.hlo_program import HloProgram

_BACKWARD = "transpose("
_FORWARD = "jvp("
#: A range of this name says itself what it is.
_OPTIMIZER = "optimizer"


def phases(program: HloProgram) -> list[str | None]:
    """Return the phase of each instruction; None if it is unknown.

    The rule, with its reasons, stands in ``docs/definitions.md``.
    """
    found = [_said(opcode, scope) for opcode, scope in zip(program.opcodes, program.scopes, strict=True)]
    if "backward" in found:
        for members in program.members:
            caller = program.parents[members[0]] if members else -1
            if caller < 0 or program.opcodes[caller] != "fusion":
                _follow(program, members, found)
    for place in range(len(program) - 1, -1, -1):  # callers stand behind their callees
        parent = program.parents[place]
        if found[place] is None and parent > place:
            found[place] = found[parent]
    return found


def _said(opcode: str, scope: str | None) -> str | None:
    """Return what opcode and scope say by themselves."""
    if opcode in OPERATIONS:
        return "communication"
    if scope is None:
        return None
    if _BACKWARD in scope:
        return "backward"
    if _FORWARD in scope:
        return "forward"
    return "optimizer" if _OPTIMIZER in scope.split("/") else None


def _follow(program: HloProgram, members: list[int], found: list[str | None]) -> None:
    """Say of the rest of a computation whether it takes what the backward pass gives; of a fusion as a whole."""
    gives = set()
    for place in members:
        taken = any(operand in gives for operand in program.operands[place])
        phase, scope = found[place], program.scopes[place]
        if (
            taken
            or phase == "backward"
            or (program.opcodes[place] == "fusion" and _contains_backward(program, place, found))
        ):
            gives.add(place)
        if phase is None and scope is not None and "/" in scope:
            found[place] = "optimizer" if place in gives else "other"


def _contains_backward(program: HloProgram, place: int, found: list[str | None]) -> bool:
    called = [number for number in program.called[place] if number >= 0]
    return any(found[member] == "backward" for number in called for member in program.members[number])
