"""Every loss has a name, a severity and advice; a ledger counts them."""

from __future__ import annotations

import re

import pytest

from stepscope.trace.losses import CATALOGUE, LossLedger, loss_text
from stepscope.trace.schema import SEVERITIES


@pytest.mark.parametrize("what", CATALOGUE)
def test_the_catalogue_says_how_bad_it_is_and_what_it_means(what: str) -> None:
    severity, advice = CATALOGUE[what]
    assert re.fullmatch(r"[a-z0-9_]+", what)
    assert severity in SEVERITIES
    assert advice.endswith(".")


def test_rows_are_counted_and_most_severe_first() -> None:
    ledger = LossLedger("a file")
    ledger.add("span_not_closed")
    ledger.add("block_damaged", 2)
    ledger.add("span_not_closed", 4)
    ledger.add("block_cut", 0)
    assert [(row.what, row.count, row.severity, row.source) for row in ledger.rows()] == [
        ("block_damaged", 2, "data_loss", "a file"),
        ("span_not_closed", 5, "info", "a file"),
    ]


def test_a_detail_precedes_the_advice_and_has_a_row_of_its_own() -> None:
    ledger = LossLedger("a file")
    for type_ in ("Other", "STARS", "Other"):
        ledger.add("kind_unknown", 1, f"Tasks of the type {type_}.")
    advice = CATALOGUE["kind_unknown"][1]
    assert [(row.count, row.advice) for row in ledger.rows()] == [
        (2, f"Tasks of the type Other. {advice}"),
        (1, f"Tasks of the type STARS. {advice}"),
    ]


def test_a_name_outside_the_catalogue_is_a_defect() -> None:
    with pytest.raises(KeyError, match="misplaced"):
        LossLedger("a file").add("misplaced")


@pytest.mark.parametrize(
    ("what", "count", "text"),
    [
        ("steps_not_recorded", 1, "1 step not recorded"),
        ("steps_not_recorded", 1200, "1,200 steps not recorded"),
        ("names_shortened", 1, "1 name shortened"),
        ("file_cut", 1, "1 file cut"),
    ],
)
def test_one_is_not_several(what: str, count: int, text: str) -> None:
    assert loss_text(what, count) == text
