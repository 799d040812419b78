"""A page without results says why: what the collector could not record, or the switch that was not on."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.report.page.content import PAGES

SHAPES = "Paddle records no shapes in eager mode and in PIR programs, and fails with shapes in older programs"


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"door": "run", "options": {"record_shapes": False}}, " (`stepscope run --shapes`)"),
        ({"door": "code", "options": {"record_shapes": False}}, " (`stepscope.profile(record_shapes=True)`)"),
        ({"door": "mindspore", "options": {"record_shapes": False}}, " (`profile(record_shapes=True)`)"),
        ({"door": "run", "options": {"record_shapes": True}}, ""),
        (
            {
                "door": "run",
                "options": {"record_shapes": True},
                "collectors": {"garbage": {}, "paddle": {"missing": {"record_shapes": SHAPES}}},
            },
            f": {SHAPES}",
        ),
        ({"source": "import"}, " (`record_shapes`)"),
    ],
    ids=["command", "code", "mindspore", "was on", "cannot", "other tool"],
)
def test_a_page_without_costs_says_what_to_change(manifest: dict[str, Any], why: str) -> None:
    (page,) = (one for one in PAGES if one.name == "roofline")
    assert page.why(manifest) == f"no operator has a known cost{why}"
    (waits,) = (one for one in PAGES if one.name == "waits")
    assert waits.why(manifest) == waits.absent
