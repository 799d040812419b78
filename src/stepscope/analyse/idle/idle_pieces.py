"""Every gap of a device, cut into pieces that have one reason each. Definition: ``docs/definitions.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyse.idle.gaps import Gaps, gaps
from stepscope.analyse.idle.thread_time import nearest_around, parents, slices, thread_times
from stepscope.analyse.intervals import Times, joined
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, of_kinds, span_kinds
from stepscope.analyse.step.device_waits import allocating, waiting
from stepscope.trace.tables import Tables, columns_of, has_rows, shared

#: The reasons, in the order in which they are shown.
REASONS: tuple[str, ...] = (
    "data wait", "synchronising call", "collective", "allocator", "compiling", "garbage collection", "profiler",
    "host preparing", "launch latency", "queued", "python", "waiting", "waiting for a core", "nothing known",
)  # fmt: skip
REASON = {name: number for number, name in enumerate(REASONS)}

#: Work that begins within so many ns of the return of the call that launched it begins at once.
LATENCY = 100_000
#: Kinds of spans that say what a thread does; a range that the user named does not.
SAYING = ("operator", "collective", "runtime", "driver", "python", "data", "sync", "garbage", "overhead", "compile",
           "other")  # fmt: skip
#: Kinds of spans in which a thread prepares work.
_PREPARING = ("operator", "collective", "runtime", "driver", "other")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class IdlePieces:
    """Disjoint pieces of the gaps, which cover them.

    Attributes:
        gap: Number of the gap that each is a part of.
        start: Starts in ns.
        end: Ends in ns.
        reason: Number of the reason, a place in :data:`REASONS`.
        name: Row of ``spans`` of the call, wait or collective that is the reason; -1 for none.
        operator: Row of ``spans`` of the innermost operator around it; -1 for none.
    """

    gap: Rows
    start: Times
    end: Times
    reason: Rows
    name: Rows
    operator: Rows


@shared
def idle_pieces(tables: Tables) -> IdlePieces:
    """Return the pieces of all gaps of a rank; none without gaps."""
    found = gaps(tables)
    if not len(found.start):
        none = np.empty(0, np.int64)
        return IdlePieces(none, none, none, none, none, none)
    told = _told_by_launches(tables, found)
    end = found.end.copy()
    np.minimum.at(end, told.gap, told.start)
    pieces = _together(told, _told_by_threads(tables, found, np.arange(len(end)), found.start, end))
    del told, end
    pieces = _after_waits(tables, found, pieces)
    order = np.lexsort((pieces.start, pieces.gap))
    order = order[(pieces.end > pieces.start)[order]]
    columns = [getattr(pieces, name) for name in _COLUMNS]
    del pieces
    return IdlePieces(*(columns.pop(0)[order] for _ in _COLUMNS))  # a column at a time: each is tens of MB


_COLUMNS = ("gap", "start", "end", "reason", "name", "operator")


def _together(first: IdlePieces, second: IdlePieces) -> IdlePieces:
    return IdlePieces(*(joined((getattr(first, name), getattr(second, name))) for name in _COLUMNS))


def _told_by_launches(tables: Tables, found: Gaps) -> IdlePieces:
    """Return the end of each gap, from where the work behind it had been launched, as latency and as queued."""
    spans = columns_of(tables, "spans", "ts", "dur")
    never = np.iinfo(np.int64).max
    called = np.append(spans["ts"].to_numpy(), never)[found.launch]
    returned = np.append((spans["ts"] + spans["dur"]).to_numpy(), never)[found.launch]
    some = np.flatnonzero((found.launch >= 0) & (called < found.end))
    begin, end = np.maximum(called, found.start)[some], found.end[some]
    prompt = (end <= returned[some] + LATENCY) & (returned[some] > found.began[some])
    middle = np.where(prompt, end, np.clip(returned[some], begin, end))
    call, nothing = found.launch[some], np.full(len(some), -1, np.int64)
    operator = nearest_around(tables, call, of_kinds(span_kinds(tables), "operator"))
    latency = IdlePieces(some, begin, middle, nothing + 1 + REASON["launch latency"], call, operator)
    return _together(latency, IdlePieces(some, middle, end, nothing + 1 + REASON["queued"], nothing, nothing))


def _told_by_threads(tables: Tables, found: Gaps, gap: Rows, start: Times, end: Times) -> IdlePieces:
    """Return what the threads do that could have launched something, the launching one first."""
    times = thread_times(tables)
    saying = of_kinds(span_kinds(tables), *SAYING)
    done: list[tuple[Rows, Times, Times, Rows]] = []
    first = [thread for thread in np.unique(found.thread[gap]).tolist() if thread in times]
    for thread, own in [(one, True) for one in first] + [(one, False) for one in preparing(tables) if one in times]:
        # The thread that launched the work behind a gap was asked first: it says the same again.
        new = (found.thread[gap] == thread) == own if thread in first else np.ones(len(gap), np.bool_)
        asked, others = np.flatnonzero(new), np.flatnonzero(~new)
        if not len(asked):
            continue
        pieces = times[thread].pieces(start[asked], end[asked])
        owner = nearest_around(tables, pieces.owner, saying)
        told, of = owner >= 0, asked[pieces.of]
        done.append((gap[of[told]], pieces.start[told], pieces.end[told], owner[told]))
        gap = joined((gap[others], gap[of[~told]]))
        del owner, of, asked, new
        start, end = (
            joined((given[others], rest)) for given, rest in ((start, pieces.start[~told]), (end, pieces.end[~told]))
        )
        del pieces, told, others
        if not len(gap):
            break
    done.append((gap, start, end, np.full(len(gap), -1, np.int64)))
    whole, begin, behind, owner = (joined(column) for column in zip(*done, strict=True))
    return IdlePieces(whole, begin, behind, *reasons_of(tables, owner))


@shared
def preparing(tables: Tables) -> list[int]:
    """Return the threads that launch work or wait for data, those with most spans first; without any, all threads."""
    track = columns_of(tables, "spans", "track")["track"].to_numpy()
    kinds = span_kinds(tables)
    known = set(np.unique(track[of_kinds(kinds, "data")]).tolist())
    if has_rows(tables, "kernels"):
        known |= set(np.unique(track[_launching(tables)]).tolist())
    threads = list(thread_times(tables))
    return [thread for thread in threads if thread in known] or threads


def _launching(tables: Tables) -> Rows:
    """Return the rows of ``spans`` of the calls that launch device work."""
    rows = rows_of(columns_of(tables, "spans", "id")["id"], columns_of(tables, "kernels", "launch")["launch"])
    return np.unique(rows[rows >= 0])


def reasons_of(tables: Tables, owner: Rows) -> tuple[Rows, Rows, Rows]:
    """Return for the innermost span of each piece the reason, and the rows of the name and of the operator."""
    reason, name, operator = _reasons(tables)
    return reason[owner].astype(np.int64), name[owner].astype(np.int64), operator[owner].astype(np.int64)


@shared
def _reasons(tables: Tables) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return what :func:`reasons_of` says of each row of ``spans``, and behind the last of no span."""
    kinds = span_kinds(tables)
    masks: list[tuple[str, Mask]] = [
        ("collective", _blocking_collectives(tables)),
        ("compiling", of_kinds(kinds, "compile")),
        ("synchronising call", waiting(tables)),
        ("allocator", allocating(tables)),
        ("garbage collection", of_kinds(kinds, "garbage")),
        ("profiler", of_kinds(kinds, "overhead")),
    ]
    decisive = np.full(len(kinds) + 1, -1, np.int8)
    for says, mask in masks:
        decisive[:-1][mask] = REASON[says]
    chosen = (
        decisive[:-1] >= 0,
        *(of_kinds(kinds, *one) for one in (("data",), ("operator",), _PREPARING, ("python",))),
    )
    reasons, names, operators = np.empty(len(kinds) + 1, np.int8), *np.full((2, len(kinds) + 1), -1, np.int32)
    reasons[-1] = REASON["nothing known"]
    for part in slices(len(kinds)):
        rows = np.arange(*part.indices(len(kinds)))
        name, data, operator, prepared, python = (nearest_around(tables, rows, mask) for mask in chosen)
        plain = (name < 0) & (data < 0)
        otherwise = np.where(python >= 0, REASON["python"], REASON["nothing known"])
        otherwise = np.where(prepared < 0, otherwise, REASON["host preparing"])
        reasons[rows] = np.where(data >= 0, REASON["data wait"], np.where(plain, otherwise, decisive[name]))
        calls = of_kinds(kinds[rows], "runtime", "driver", "collective", "other", "python")
        names[rows] = np.where(data >= 0, data, np.where(plain & calls, rows, name))
        operators[rows] = operator
    return reasons, names, operators


@shared
def _blocking_collectives(tables: Tables) -> Mask:
    """Return which spans are calls of collectives that run on the host: those in which no device work is launched."""
    result = np.zeros(len(span_kinds(tables)), np.bool_)
    if not has_rows(tables, "collectives"):
        return result
    ids = columns_of(tables, "spans", "id")["id"]
    rows = rows_of(ids, columns_of(tables, "collectives", "span")["span"])
    result[rows[rows >= 0]] = True
    calls, parent = _launching(tables), parents(tables)
    while len(calls):
        result[calls] = False
        around = np.unique(parent[calls])
        calls = around[around >= 0]
    return result


def _after_waits(tables: Tables, found: Gaps, pieces: IdlePieces) -> IdlePieces:
    """Give the call in which a gap began the time that the host needs, once it returned, to launch the next work.

    The device ran out of work because the host stood in that call: work launched before would have filled the gap.
    """
    kinds = span_kinds(tables)
    waits = np.flatnonzero(waiting(tables) & ~of_kinds(kinds, "kernel"))
    waits = waits[np.isin(columns_of(tables, "spans", "track")["track"].to_numpy()[waits], list(thread_times(tables)))]
    if not len(waits):
        return pieces
    spans = columns_of(tables, "spans", "ts", "dur")
    waits = waits[np.argsort(spans["ts"].to_numpy()[waits], kind="stable")]
    begin = spans["ts"].to_numpy()[waits]
    end = begin + spans["dur"].to_numpy()[waits]
    place = np.searchsorted(begin, found.began, side="right") - 1
    stood = np.where((place >= 0) & (end[place] >= found.began), waits[place], -1)[pieces.gap]
    moved = (stood >= 0) & np.isin(pieces.reason, (REASON["host preparing"], REASON["launch latency"]))
    operator = pieces.operator.copy()
    operator[moved] = nearest_around(tables, stood[moved], of_kinds(kinds, "operator"))
    reason = np.where(moved, REASON["synchronising call"], pieces.reason)
    return IdlePieces(pieces.gap, pieces.start, pieces.end, reason, np.where(moved, stood, pieces.name), operator)
