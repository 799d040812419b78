from __future__ import annotations

from decimal import Decimal

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.units import timestamp_us, us


@given(st.lists(st.integers(0, 10**14), min_size=1))
def test_durations_are_the_nearest_float_and_print_with_three_decimals(durations: list[int]) -> None:
    shown = pl.DataFrame({"dur": durations}).select(us("dur"))["dur"].to_list()
    assert shown == [dur / 1000 for dur in durations]


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_times_since_the_epoch_are_exact(times: list[int]) -> None:
    shown = pl.DataFrame({"ts": times}, schema={"ts": pl.Int64}).select(timestamp_us("ts"))["ts"].to_list()
    assert shown == [Decimal(ts) / 1000 for ts in times]
