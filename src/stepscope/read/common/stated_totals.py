"""The totals that a source itself states, compared with the same totals of what was read of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.read.common.part_builder import PartBuilder, as_json
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import TOTALS

#: Largest part by which two sums of one thing may differ: their times are rounded, and steps cut at other instants.
_TOLERANCE = 0.01
#: Sums below this, ns, are rounding.
_NOTHING = 1000


@dataclass
class StatedTotals:
    """Compares totals, and remembers which.

    Attributes:
        ledger: Counts totals that differ; its source is where the totals stand.
        compared: What was compared, in order.
    """

    ledger: LossLedger
    compared: list[str] = field(default_factory=list)

    def times(self, what: str, stated: float | None, read: float | None) -> None:
        """Compare two sums of times, ns; null on one side is not compared."""
        if stated is not None and read is not None:
            self._compare(what, (stated, read), _NOTHING, lambda ns: f"{ns / 1e6:,.3f} ms")

    def counts(self, what: str, stated: int | None, read: int | None) -> None:
        """Compare two numbers of things; null on one side is not compared."""
        if stated is not None and read is not None:
            self._compare(what, (stated, read), 0, lambda count: f"{count:,.0f}")

    def _compare(self, what: str, pair: tuple[float, float], nothing: float, text: Callable[[float], str]) -> None:
        stated, read = pair
        self.compared.append(what)
        if abs(stated - read) > max(_TOLERANCE * max(abs(stated), abs(read)), nothing):
            sentence = f"{self.ledger.source} states {text(stated)} of {what}, what was read of the capture has "
            self.ledger.add("total_differs", 1, f"{sentence}{text(read)}.")


def add(part: PartBuilder, totals: list[StatedTotals]) -> None:
    """Add to a part what differs, and as a fact what was compared."""
    for one in totals:
        part.add_ledger(one.ledger)
    compared = [f"{one.ledger.source}: {what}" for one in totals for what in one.compared]
    if compared:
        part.add_facts(as_json({TOTALS: compared}))
