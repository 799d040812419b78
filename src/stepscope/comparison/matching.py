"""Which part of A is which part of B?

Each pass looks at what the one before left: the same phase, scope, name and shapes; the same but for the shapes and for
what compilers put into names; kernels that one operator of the same shapes launches; the same place in the step, where
one name stands for another.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from stepscope.comparison.parts import PartKey, StepPartLevel

SAME, OTHER_SHAPES, SAME_PLACE = "same", "other shapes", "same place"

#: What another version of a compiler or library would write differently, and what stands for it: template arguments,
#: architectures, sizes of tiles, numbers of compilers.
_VARIABLE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"<.*>", "<>"),
        (r"\b(?:sm|ampere|volta|turing|hopper|blackwell)_?\d*x?\d*_", ""),
        (r"_?\d+x\d+(?:x\d+)*(?:_\w*)?", ""),
        (r"^((?:triton_|jit_|wrapped_|fusion|loop_|input_|copy|add|multiply).*?)[._]\d+$", r"\1"),
    )
)


@dataclass(frozen=True)
class Match:
    """Parts of A and of B that are one thing, and how that is known: :data:`SAME`, for one."""

    a: tuple[StepPartLevel, ...]
    b: tuple[StepPartLevel, ...]
    how: str


@dataclass(frozen=True)
class Matched:
    """The parts of two runs: what is in both, and what is in one only."""

    pairs: tuple[Match, ...]
    only_a: tuple[StepPartLevel, ...]
    only_b: tuple[StepPartLevel, ...]


def plain_name(name: str) -> str:
    """Return a name as every version of a compiler or library would write it."""
    for pattern, text in _VARIABLE:
        name = pattern.sub(text, name)
    return name


def match(a: Sequence[StepPartLevel], b: Sequence[StepPartLevel]) -> Matched:
    """Match the parts of two runs; both in the order in which a step meets them first."""
    pairs: list[Match] = []
    left_a, left_b = list(a), list(b)
    for how, key in ((SAME, _whole), (OTHER_SHAPES, _without_shapes)):
        found, left_a, left_b = _by_key(left_a, left_b, how, key)
        pairs += found
    others_a, others_b = ([part for part in left if not _launched(part.key)] for left in (left_a, left_b))
    launched_a, launched_b = ([part for part in left if _launched(part.key)] for left in (left_a, left_b))
    found, launched_a, launched_b = _by_key(launched_a, launched_b, SAME_PLACE, _operator)
    pairs, left_a, left_b = pairs + found, others_a + launched_a, others_b + launched_b
    places = _by_place(a, b, left_a, left_b)
    used = {id(part) for pair in places for part in (*pair.a, *pair.b)}
    only = (tuple(part for part in left if id(part) not in used) for left in (left_a, left_b))
    return Matched((*pairs, *places), *only)


def _whole(key: PartKey) -> Hashable:
    return key


def _without_shapes(key: PartKey) -> Hashable:
    return key.place, key.phase, key.scope, plain_name(key.name)


def _launched(key: PartKey) -> bool:
    return key.place == "device" and bool(key.scope)


def _operator(key: PartKey) -> Hashable:
    """Return which operator launched a kernel, and for what."""
    return key.place, key.phase, key.scope, key.shapes


def _by_key(
    a: list[StepPartLevel], b: list[StepPartLevel], how: str, key: Callable[[PartKey], Hashable]
) -> tuple[list[Match], list[StepPartLevel], list[StepPartLevel]]:
    groups: dict[Hashable, tuple[list[StepPartLevel], list[StepPartLevel]]] = {}
    for side, parts in enumerate((a, b)):
        for part in parts:
            groups.setdefault(key(part.key), ([], []))[side].append(part)
    both = {name for name, (mine, theirs) in groups.items() if mine and theirs}
    pairs = [Match(tuple(mine), tuple(theirs), how) for name, (mine, theirs) in groups.items() if name in both]
    left_a, left_b = ([part for part in parts if key(part.key) not in both] for parts in (a, b))
    return pairs, left_a, left_b


def _by_place(
    a: Sequence[StepPartLevel],
    b: Sequence[StepPartLevel],
    left_a: list[StepPartLevel],
    left_b: list[StepPartLevel],
) -> list[Match]:
    """Pair what was renamed, fused or split: parts that are left, between the same neighbours on both sides.

    A step meets a repeated layer many times but each of its parts is one here, so repetitions need no collapsing.
    """
    if not left_a or not left_b:
        return []
    kept_a, kept_b = {id(part) for part in left_a}, {id(part) for part in left_b}
    names_a, names_b = ([_without_shapes(part.key) for part in parts] for parts in (a, b))
    pairs = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, names_a, names_b, autojunk=False).get_opcodes():
        mine = tuple(part for part in a[i:j] if id(part) in kept_a)
        theirs = tuple(part for part in b[k:m] if id(part) in kept_b)
        if tag == "replace" and mine and theirs:
            pairs += _within_phases(mine, theirs)
    return pairs


def _within_phases(a: Sequence[StepPartLevel], b: Sequence[StepPartLevel]) -> list[Match]:
    """Return one match for each place and phase that both sides have."""
    found = []
    for where in dict.fromkeys((part.key.place, part.key.phase) for part in a):
        mine, theirs = (tuple(part for part in parts if (part.key.place, part.key.phase) == where) for parts in (a, b))
        if mine and theirs:
            found.append(Match(mine, theirs, SAME_PLACE))
    return found
