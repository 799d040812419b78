"""Ranges that any thread may end, in any order: what ``mstx`` needs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepscope.collect import annotations
from stepscope.collect.annotations import close_range, open_range
from stepscope.collect.journal.journal import Journal

from .reading import Read, read_journal


class Recorded:
    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)
        annotations.bind(self.journal)

    def end(self) -> Read:
        annotations.unbind()
        self.journal.close()
        return read_journal(self.journal.path)


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path / "journal.ssj")
    yield made
    made.end()


def test_outside_of_a_window_nothing_happens() -> None:
    assert open_range("range", {}) == 0
    close_range(0)
    close_range(12)


def test_ranges_overlap_and_keep_their_own_time(window: Recorded) -> None:
    first = open_range("first", {"domain": "a"})
    second = open_range("second", {})
    close_range(first)
    close_range(second)
    close_range(second)
    read = window.end()
    one, two = read.spans
    assert (one["name"], one["args"]) == ("first", {"domain": "a"})
    assert one["ts"] < two["ts"] < one["ts"] + one["dur"] < two["ts"] + two["dur"]
    assert read.counted == {}


def test_numbers_are_single_across_threads_and_any_thread_ends_a_range(window: Recorded) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda index: open_range(f"range {index}", {}), range(400)))
        assert len(set(numbers)) == 400
        list(pool.map(close_range, reversed(numbers)))
    read = window.end()
    assert len(read.spans) == 400
    assert read.counted == {}


def test_what_is_open_at_the_end_ends_there_and_is_counted(window: Recorded, tmp_path: Path) -> None:
    left = open_range("left", {"domain": "a"})
    read = window.end()
    (span,) = read.spans
    assert span["args"] == {"domain": "a", "not_closed": True}
    assert read.counted == {"span_not_closed": 1}
    # a later window does not know it
    later = Recorded(tmp_path / "later.ssj")
    close_range(left)
    assert later.end().spans == []
