"""What each host thread does at every instant: its innermost span."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyse.intervals import Times, joined
from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import Rows, on_tracks, rows_by_track
from stepscope.trace.tables import Tables, columns_of, shared

#: So many intervals or instants are looked at together: what is kept of them is much less than what it takes.
SLICE = 1 << 20


def slices(count: int) -> list[slice]:
    """Return slices that cover ``count`` places; one that is empty for none."""
    return [slice(begin, begin + SLICE) for begin in range(0, max(count, 1), SLICE)]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of time, each with what it was cut from.

    Attributes:
        of: Number of the interval that each piece is a part of.
        start: Starts in ns.
        end: Ends in ns.
        owner: Row of ``spans`` that the thread was in; -1 for none.
    """

    of: Rows
    start: Times
    end: Times
    owner: Rows


@dataclass(frozen=True, eq=False)
class ThreadTime:
    """The innermost span of one thread at every instant.

    Attributes:
        edge: Instants at which it changes, in ns, ascending.
        owner: Row of ``spans`` from that instant to the next edge; -1 for none.
    """

    edge: Times
    owner: Rows

    def at(self, instants: Times) -> Rows:
        """Return the row of the innermost span at each instant; -1 for none."""
        place = np.searchsorted(self.edge, instants, side="right") - 1
        return np.where(place >= 0, self.owner[place], -1)

    def pieces(self, start: Times, end: Times) -> Pieces:
        """Cut intervals ``[start, end)``, which may overlap each other, where the innermost span changes."""
        columns = [*zip(*(self._cut(part, start, end) for part in slices(len(start))), strict=True)]
        # A column at a time: the parts of one are dropped before those of the next are joined.
        return Pieces(*(joined(columns.pop(0)) for _ in range(len(columns))))

    def between(self, start: Times, end: Times) -> Iterator[Pieces]:
        """Yield the pieces of intervals in the order of time, those of about :data:`SLICE` edges at a time."""
        edges = [np.iinfo(np.int64).min, *self.edge[SLICE::SLICE].tolist(), np.iinfo(np.int64).max]
        for begin, behind in itertools.pairwise(edges):
            yield self.pieces(np.clip(start, begin, behind), np.clip(end, begin, behind))

    def _cut(self, part: slice, start: Times, end: Times) -> tuple[Rows, Times, Times, Rows]:
        start, end = start[part], end[part]
        first = np.searchsorted(self.edge, start, side="right")
        count = np.maximum(np.searchsorted(self.edge, end, side="left") - first, 0) + 1
        of = np.repeat(np.arange(len(start)), count)
        place = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        behind = first[of] + place
        begins = np.where(place == 0, start[of], self.edge[behind - 1])
        ends = np.where(place == count[of] - 1, end[of], self.edge[np.minimum(behind, len(self.edge) - 1)])
        kept = np.flatnonzero(ends > begins)
        of, begins, ends = of[kept], begins[kept], ends[kept]
        return of + part.start, begins, ends, self.at(begins)


@shared
def thread_times(tables: Tables) -> dict[int, ThreadTime]:
    """Return what each host thread does, by the id of its track; those with most spans first.

    Where spans of one thread cross, the one that begins later is the inner one; what remains of the other is lost.
    """
    spans = columns_of(tables, "spans", "track", "ts", "dur", "depth")
    track, dur = spans["track"].to_numpy(), spans["dur"].to_numpy()
    rows = np.flatnonzero(on_tracks(tables, "thread") & (dur > 0))
    track, start, depth = track[rows], spans["ts"].to_numpy()[rows], spans["depth"].to_numpy()[rows].astype(np.int32)
    end, outer = start + dur[rows], parents(tables)[rows]
    del spans, dur
    found: dict[int, ThreadTime] = {}
    rows_of_threads = rows_by_track(track)
    for thread in sorted(rows_of_threads, key=lambda one: -len(rows_of_threads[one])):
        mine = rows_of_threads[thread]
        at = np.concatenate((end[mine], start[mine]))
        # At one instant inner spans end first, outer ones next, then outer ones start and inner ones: the last counts.
        order = np.lexsort((np.concatenate((-1 - depth[mine], depth[mine])), at))
        at = at[order]
        last = np.flatnonzero(np.append(at[1:] != at[:-1], True))
        edge, order = at[last], order[last]
        del at, last  # of a large rank each array of edges is hundreds of MB
        found[thread] = ThreadTime(edge, np.concatenate((outer[mine], rows[mine]))[order])
    return found


@shared
def parents(tables: Tables) -> Rows:
    """Return the row of the span around each row of ``spans``; -1 for none."""
    spans = columns_of(tables, "spans", "id", "parent")
    return rows_of(spans["id"], spans["parent"])


def nearest_around(tables: Tables, rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    """Return, for each row of ``spans``, the row of the innermost span that is ``chosen``: itself or one around it.

    Args:
        tables: The tables of a rank.
        rows: Rows of ``spans``; -1 for none.
        chosen: Whether each row of ``spans`` is looked for.
    """
    parent, found = parents(tables), np.full(len(rows), -1, np.int64)
    for part in slices(len(rows)):
        place = np.flatnonzero(rows[part] >= 0) + part.start
        here = rows[place]
        while len(here):
            found[place] = np.where(chosen[here], here, -1)
            further = ~chosen[here] & (parent[here] >= 0)
            place, here = place[further], parent[here[further]]
    return found
