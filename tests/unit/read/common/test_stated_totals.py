"""Totals that a source states: what differs by more than 1 % is a loss with both numbers."""

from __future__ import annotations

import json

import pytest

from stepscope.read.common import stated_totals
from stepscope.read.common.part_builder import PartBuilder
from stepscope.read.common.stated_totals import StatedTotals
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import TOTALS


@pytest.mark.parametrize(
    ("stated", "read", "lost"),
    [
        (10_000_000, 10_000_000, False),
        (10_000_000, 10_099_000, False),
        (10_000_000, 10_200_000, True),
        (10_000_000, 0, True),
        (0, 10_000_000, True),
        (900, 0, False),  # rounding
        (None, 10_000_000, False),
        (10_000_000, None, False),
    ],
)
def test_times(stated: float | None, read: float | None, lost: bool) -> None:
    totals = StatedTotals(LossLedger("a.csv"))
    totals.times("computing", stated, read)
    assert bool(totals.ledger.rows()) == lost
    assert totals.compared == ([] if None in (stated, read) else ["computing"])


def test_both_numbers_are_said_and_what_was_compared_is_a_fact() -> None:
    totals = StatedTotals(LossLedger("a.csv"))
    totals.times("computing", 8_868_240, 238_000)
    totals.counts("calls", 1_200, 1_200)
    part = PartBuilder()
    stated_totals.add(part, [totals, StatedTotals(LossLedger("b.csv"))])
    tables = part.tables()
    (row,) = tables["losses"].rows(named=True)
    assert (row["what"], row["severity"], row["source"]) == ("total_differs", "error", "a.csv")
    assert "a.csv states 8.868 ms of computing, what was read of the capture has 0.238 ms." in row["advice"]
    assert {key: json.loads(value) for key, value in tables["metadata"].rows()} == {
        TOTALS: ["a.csv: computing", "a.csv: calls"]
    }
