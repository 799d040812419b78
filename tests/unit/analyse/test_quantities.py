"""Three digits and a unit, also at the edges between units."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.quantities import (
    bytes_text,
    count_text,
    duration_text,
    number_text,
    percent_text,
    rate_text,
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (1, "1.00 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (41_234_567, "41.2 ms"),
        (9_995_000, "10.0 ms"),
        (1_050_000_000, "1.05 s"),
        (599e9, "599 s"),
        (7_200e9, "120 min"),
    ],
)
def test_durations(ns: float, text: str) -> None:
    assert duration_text(ns) == text


@given(st.floats(0.001, 500e9))
def test_a_duration_is_close_to_what_it_says(ns: float) -> None:
    number, unit = duration_text(ns).split()
    assert float(number) * {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit] == pytest.approx(ns, rel=0.0051, abs=1)
    assert len(re.sub(r"\D", "", number)) <= 3


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (8, "8 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (-(2**30), "-1.00 GiB"),
    ],
)
def test_bytes(amount: int, text: str) -> None:
    assert bytes_text(amount) == text


def test_percent_and_counts() -> None:
    shares = (0.0, 0.004, 0.005, 0.006, 0.5, 1.0)
    assert [percent_text(share) for share in shares] == ["0 %", "<1 %", "<1 %", "1 %", "50 %", "100 %"]
    assert [count_text(count, "step") for count in (0, 1, 12_345)] == ["0 steps", "1 step", "12,345 steps"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2550, "2,550"), (12_345_678, "12,345,678"), (99.96, "100"), (87.34, "87.3"), (26, "26"),
     (0.778, "0.778"), (0.047, "0.047"), (0.0000123, "0.000012")],
)  # fmt: skip
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert number_text(value) == text


def test_rates() -> None:
    assert rate_text(8.8e9, 1e9) == "8.8 GFLOP/s"
    assert rate_text(48.6e3, 1) == "48.6 TFLOP/s"
    assert rate_text(2e3, 1e6) == "2 MFLOP/s"
    assert rate_text(1, 0) == "–"
