"""Quantities as people read them: three digits and a unit."""

from __future__ import annotations

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "{micro}s"), (1, "ns"))
_OPERATIONS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def duration_text(ns: float, *, micro: str = "µ") -> str:
    """Return nanoseconds with three digits: ``41.2 ms``, ``1.05 s``, ``850 ns``; minutes beyond 600 s.

    Args:
        ns: Duration, not negative.
        micro: How to write the prefix micro.
    """
    if ns >= 600e9:
        return f"{ns / 60e9:.0f} min"
    for size, unit in _DURATIONS:
        # 999.5 µs and more would round to 1000 µs.
        if ns >= 0.9995 * size:
            return f"{_three_digits(ns / size)} {unit.format(micro=micro)}"
    return "0 ms"


def bytes_text(amount: int) -> str:
    """Return bytes with three digits and a binary unit: ``1.46 GiB``."""
    for size, unit in _BYTES:
        if size == 1 and amount:
            return f"{amount} B"
        if abs(amount) >= 0.9995 * size:
            return f"{_three_digits(amount / size)} {unit}"
    return "0 B"


def rate_text(operations: float, ns: float) -> str:
    """Return floating-point operations in some nanoseconds as a rate: ``8.8 GFLOP/s``; a dash if no time passed."""
    if ns <= 0:
        return "–"
    rate = operations / ns * 1e9
    size, unit = next((one for one in _OPERATIONS if rate >= 0.9995 * one[0]), _OPERATIONS[-1])
    return f"{number_text(rate / size)} {unit}"


def number_text(value: float) -> str:
    """Return a number with three digits, never with an exponent: ``2,550``, ``87.3``, ``26``, ``0.047``."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or not value else f"{value:.6f}".rstrip("0").rstrip(".")


def percent_text(share: float) -> str:
    """Return a fraction as whole percent; what is there but rounds to 0 as ``<1 %``."""
    return "<1 %" if 0 < share <= 0.005 else f"{100 * share:.0f} %"


def count_text(count: int, what: str) -> str:
    """Return a count and its noun: ``1 step``, ``5 steps``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
