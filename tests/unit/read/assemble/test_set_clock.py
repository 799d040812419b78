"""The system clock was set while a capture read it: all of its times move onto the time line of the journal."""

from __future__ import annotations

import json

import polars as pl

from stepscope.read.assemble.set_clock import align
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import CLOCK_SET

MS, HOUR = 1_000_000, 3_600 * 1_000_000_000


def facts(**values: str) -> pl.DataFrame:
    return pl.DataFrame({"key": list(values), "value": list(values.values())}, schema={"key": str, "value": str})


def test_what_a_program_asked_for_moves_with_the_work() -> None:
    # Given a recording of 10 ms in whose middle the clock is set an hour forward
    was_set = {"shifts": [HOUR], "begin": 0, "end": 10 * MS}
    steps = pl.DataFrame({"number": [0, 1], "ts": [0, 5 * MS], "dur": [5 * MS, 5 * MS]})
    journal = {"metadata": facts(**{CLOCK_SET: json.dumps(was_set)}), "steps": steps}
    capture = {
        "metadata": facts(),
        "steps": steps.clear(),
        "arrows": pl.DataFrame(schema={"from_ts": pl.Int64, "to_ts": pl.Int64}),
        "spans": pl.DataFrame({"ts": [MS, HOUR + 6 * MS], "dur": [MS, 2 * MS]}),
        "dispatches": pl.DataFrame({"ts": [MS, HOUR + 6 * MS], "end": [2 * MS, HOUR + 8 * MS]}),
    }
    # When it is put on the time line of the journal
    assert align([journal, capture], LossLedger("test"))
    # Then nothing lasts an hour, neither work nor what was asked for
    assert capture["spans"].rows() == [(MS, MS), (6 * MS, 2 * MS)]
    assert capture["dispatches"].rows() == [(MS, 2 * MS), (6 * MS, 8 * MS)]
