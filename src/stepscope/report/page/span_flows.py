"""What belongs to a span elsewhere: what it launched or was launched by, its backward or forward, its kernels."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from stepscope.report.page.lane_spans import Array
from stepscope.trace.schema import FLOW_KINDS
from stepscope.trace.tables import Tables, columns_of

LAUNCH = FLOW_KINDS.index("launch")


@dataclass(frozen=True, eq=False)
class SpanFlows:
    """Arrows between spans of a timeline, by the place of their beginning.

    Attributes:
        begin: Place of the span where each begins.
        end: Place of the span where it ends.
        kind: Number of its kind, a place in :data:`FLOW_KINDS`.
    """

    begin: Array
    end: Array
    kind: Array

    def of(self, place: int) -> tuple[Array, Array]:
        """Return the numbers of the arrows that begin at a span, and of those that end there."""
        low, high = np.searchsorted(self.begin, (place, place + 1))
        return np.arange(low, high), np.flatnonzero(self.end == place)

    def chain(self, place: int, most: int) -> Array:
        """Return the numbers of the arrows from a span onwards, and of those that lead to it: the nearest ``most``."""
        found: dict[int, None] = {}
        left = deque([(place, 0), (place, 1)])
        seen = set(left)
        while left and len(found) < most:
            at, way = left.popleft()
            numbers = self.of(at)[way][: most - len(found)]
            found |= dict.fromkeys(numbers.tolist())
            for other in (self.end, self.begin)[way][numbers].tolist():
                if (other, way) not in seen:
                    seen.add((other, way))
                    left.append((other, way))
        return np.array([*found], np.int64)


def span_flows(tables: Tables, row: Array) -> SpanFlows:
    """Return the arrows of a rank between spans of a timeline; those with an end elsewhere are left out.

    Args:
        tables: The tables of the rank.
        row: ``spans.id`` of each place of the timeline.
    """
    flows = columns_of(tables, "flows", "from", "to", "kind")
    order = np.argsort(row, kind="stable")
    ids = row[order]

    def places(given: Array) -> Array:
        at = np.minimum(np.searchsorted(ids, given), max(len(ids) - 1, 0))
        return np.where(ids[at] == given, order[at], -1) if len(ids) else np.full(len(given), -1)

    begin, end = places(flows["from"].to_numpy()), places(flows["to"].to_numpy())
    kind = flows["kind"].to_physical().to_numpy().astype(np.int64)
    known = np.flatnonzero((begin >= 0) & (end >= 0))
    known = known[np.argsort(begin[known], kind="stable")]
    return SpanFlows(begin[known], end[known], kind[known])
