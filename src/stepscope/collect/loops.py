"""Which of two calls of a program is repeated on its own: in a loop that the other one is not in.

``for batch in loader: critic.step(); if number % 5 == 0: generator.step()`` and ``for _ in range(5): critic.step()``
followed by ``generator.step()`` make the same sequence of steps. The first one has an iteration for each step of the
critic, the second one for each step of the generator. What differs is where the calls stand in the code.
"""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from types import CodeType
from typing import TypeAlias

from stepscope.collect.frameworks import FRAMEWORKS

#: The code of each caller, the outermost first, and the offset at which it stands.
CallPath: TypeAlias = "tuple[tuple[CodeType, int], ...]"

#: Packages whose innermost callers are left out: hooks, and what the framework does around them.
_HOOKS = frozenset({"stepscope", *FRAMEWORKS})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
#: Codes whose loops are kept, and callers that are looked at.
_CODES, _DEPTH = 256, 200


def call_path() -> CallPath:
    """Return where the call of the program stands that a hook has seen."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _HOOKS:
        frame = frame.f_back
    path = [(frame.f_code, frame.f_lasti)]
    while frame.f_back is not None and len(path) < _DEPTH:
        frame = frame.f_back
        path.append((frame.f_code, frame.f_lasti))
    return tuple(reversed(path))


def repeats_without(path: CallPath, other: CallPath) -> bool:
    """Return whether the first call is in a loop that the other one is not in."""
    pairs = list(zip(path, other, strict=False))
    fork = next((at for at, (one, two) in enumerate(pairs) if one[0] is not two[0] or one[1] != two[1]), None)
    if fork is None:
        return False
    (code, offset), (other_code, other_offset) = pairs[fork]
    shared = _around(code, other_offset) if code is other_code else frozenset()
    return bool(_around(code, offset) - shared) or any(_around(*place) for place in path[fork + 1 :])


def _around(code: CodeType, offset: int) -> frozenset[int]:
    """Return the beginnings of the loops around an offset."""
    return frozenset(begin for begin, end in _loops(code) if begin <= offset <= end)


@lru_cache(maxsize=_CODES)
def _loops(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return beginning and end of each loop.

    From Python 3.12 on, handlers of exceptions lie behind all other code of a function, and may jump back into a loop:
    those jumps are left out, because the loop would reach over everything between.
    """
    ends: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname == "PUSH_EXC_INFO" and sys.version_info >= (3, 12):
            break
        if instruction.opcode in _JUMPS and instruction.argval < instruction.offset:
            ends[instruction.argval] = instruction.offset
    return tuple(ends.items())
