"""How much the tests do. This module alone decides between quick and full; ``pytest --size`` chooses.

``quick``
    What ``make test`` runs: no test marked ``slow``, and small counts in the tests that take the fixture ``size``.
``rest``
    What ``quick`` leaves out: the tests marked ``slow``, and those of other counts, at their full counts.
``full``
    Every test at its full counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

CHOICES = ("quick", "rest", "full")

#: Examples of a Hypothesis test that does not say how many.
EXAMPLES = 100


@dataclass
class Size:
    """The counts of one run of the tests.

    Attributes:
        full: Whether each test does all it can do.
    """

    full: bool = False

    def many(self, count: int) -> int:
        """Return how often to try what is tried ``count`` times in full: a tenth of it when quick."""
        return count if self.full else max(count // 10, 1)

    def lengths(self, stop: int, step: int = 1) -> range:
        """Return the lengths below ``stop`` to cut a file at, the last among them: every 7th of them when quick."""
        every = range(0, stop, step)
        return every if self.full else range(every[-1] % (7 * step), stop, 7 * step)

    def examples(self, count: int) -> int:
        """Return how many examples Hypothesis makes of a property: a quarter when quick."""
        return count if self.full else max(count // 4, 10)


def first_quick(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Return the values of a parametrized test, of which all after the first ones are slow."""
    return [value if place < quick else _slow(value) for place, value in enumerate(values)]


def _slow(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)


#: The size of this run. ``tests/conftest.py`` sets it before any test module is imported.
SIZE = Size()
