"""Steps that end elsewhere than it seemed while they ran: rows of the journal → rows of the steps.

With several optimizers, the first steps of a program do not show yet which one ends a training step. The journal has a
row for each step as it seemed then; what it says later of their ends counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

import msgspec

_MOST = 1 << 61
_Time = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Row: TypeAlias = "dict[str, Any]"

#: Two readings of the clock at the end of one step differ by less; pauses in which a window is prepared are longer.
_TOGETHER_NS, _PAUSE_NS = 100_000, 500_000
#: Columns that are not added up when steps are joined.
_NOT_ADDED = ("ts", "number", "source", "batches_ready")


class Recount(msgspec.Struct, forbid_unknown_fields=True):
    """When each step ended, from the first one on, up to a time; of ``time.perf_counter_ns``. No ends: unknown."""

    until: _Time
    ends: list[_Time]


def recounted(rows: Sequence[_Row], recount: Recount) -> list[_Row]:
    """Return the rows with those up to :attr:`Recount.until` joined or divided as their ends say.

    What a step divides is unknown but its time. Of a step in which stepscope prepared a window, nothing but its end is
    known. If the ends are unknown, the rows up to then are left out, and of the step that follows nothing but its end
    is known.
    """
    ordered = sorted(rows, key=_end)
    old = [row for row in ordered if _end(row) <= recount.until]
    new = ordered[len(old) :]
    if not old:
        return ordered
    if not recount.ends:
        return [*map(_only_its_end, new[:1]), *new[1:]]
    known = [_end(row) for row in old]
    ends = [min(known, key=lambda one: abs(one - end)) for end in sorted(recount.ends)]
    ends = [one if abs(one - end) < _TOGETHER_NS else end for one, end in zip(ends, sorted(recount.ends), strict=True)]
    # The row that follows says how many steps are before it; its end is its own.
    ends = list(dict.fromkeys(ends))[: new[0]["number"] if new else None]
    begin = old[0]["ts"]
    near = ordered[: len(old) + 1]
    joined = [_joined(number, near, bounds) for number, bounds in enumerate(pairwise([begin, *ends]))]
    if joined and old[0]["dur"] is None:  # nothing is known of the beginning of the first step
        joined[0] = _only_its_end(joined[0])
    rest = (ends or [begin])[-1]
    if new and rest != known[-1]:
        new[0] = _joined(new[0]["number"], near, (rest, _end(new[0])))
    return [*joined, *new]


def _end(row: _Row) -> int:
    return int(row["ts"] + (row["dur"] or 0))


def _only_its_end(row: _Row) -> _Row:
    return {**{key: value if key in _NOT_ADDED else None for key, value in row.items()}, "ts": _end(row)}


def _joined(number: int, rows: Sequence[_Row], bounds: tuple[int, int]) -> _Row:
    """Return the step between two times, with the sums of the rows in it if they fill it."""
    begin, end = bounds
    inside = [row for row in rows if begin <= row["ts"] and begin < _end(row) <= end]
    filled = sum(row["dur"] or 0 for row in inside) == end - begin
    last = inside[-1] if inside else rows[-1]
    step = dict.fromkeys(last) | {key: last[key] for key in ("source", "batches_ready") if key in last}
    for key in step.keys() - set(_NOT_ADDED):
        values = [row[key] for row in inside]
        step[key] = sum(values) if filled and None not in values else None
    step |= {"ts": begin, "dur": end - begin, "number": number}
    covered = sum(max(0, min(_end(row), end) - max(row["ts"], begin)) for row in rows)
    return step if end - begin - covered < _PAUSE_NS else _only_its_end(step)
