"""Steps that were counted anew: their times come from their ends, their figures from the rows that fill them."""

from __future__ import annotations

from typing import Any

from stepscope.read.journal.recounted_steps import Recount, recounted


def row(number: int, begin: int, end: int, **figures: Any) -> dict[str, Any]:
    return {"ts": begin, "dur": end - begin, "number": number, "cpu": (end - begin) // 2, **figures}


S = 1_000_000_000


def test_rows_are_joined_and_the_row_that_was_begun_goes_on() -> None:
    # Given five steps of a critic that seemed to be steps, then those of the generator
    rows = [row(number, number * S, (number + 1) * S) for number in range(5)]
    rows += [row(0, 5 * S, 6 * S), row(1, 6 * S, 12 * S)]
    # When the first row of the generator says that it ends them
    found = recounted(rows, Recount(until=5 * S, ends=[6 * S]))
    assert found == [row(0, 0, 6 * S), row(1, 6 * S, 12 * S)]


def test_a_reading_a_moment_later_is_the_same_end() -> None:
    rows = [row(0, 0, S), row(1, S, 2 * S), row(1, 2 * S, 3 * S)]
    assert recounted(rows, Recount(until=2 * S, ends=[2 * S - 3_000])) == [row(0, 0, 2 * S), row(1, 2 * S, 3 * S)]


def test_what_a_step_divides_is_unknown_but_its_time() -> None:
    rows = [row(0, 0, 2 * S), row(1, 2 * S, 6 * S), row(1, 6 * S, 8 * S)]
    found = recounted(rows, Recount(until=6 * S, ends=[4 * S]))
    assert found == [{**row(0, 0, 4 * S), "cpu": None}, {**row(1, 4 * S, 8 * S), "cpu": None}]


def test_a_first_step_without_a_beginning_has_no_duration() -> None:
    first = {"ts": S, "dur": None, "number": 0, "cpu": None}
    found = recounted([first, row(1, S, 2 * S), row(1, 2 * S, 3 * S)], Recount(until=2 * S, ends=[2 * S]))
    assert [(step["ts"], step["dur"], step["number"]) for step in found] == [(2 * S, None, 0), (2 * S, S, 1)]


def test_a_step_after_a_pause_begins_where_it_began() -> None:
    rows = [row(0, 0, S), row(1, 5 * S, 6 * S)]
    assert recounted(rows, Recount(until=S, ends=[S])) == rows


def test_a_window_that_goes_on_inside_a_step_is_no_pause() -> None:
    rows = [row(0, 0, S), row(1, S + 50_000, 2 * S), row(2, 2 * S, 3 * S)]
    found = recounted(rows, Recount(until=2 * S, ends=[S // 2, 2 * S]))
    assert [(step["ts"], step["dur"]) for step in found[1:]] == [(S // 2, 2 * S - S // 2), (2 * S, S)]


def test_of_a_step_with_a_pause_inside_only_the_end_is_known() -> None:
    # Given a window is prepared while it seems that a step has ended: before the last optimizer has stepped
    rows = [row(0, 0, S), row(1, 5 * S, 6 * S), row(2, 6 * S, 7 * S)]
    unknown = {"dur": None, "cpu": None}
    found = recounted(rows, Recount(until=S, ends=[S // 2]))
    assert found[1:] == [{**row(1, 6 * S, 6 * S), **unknown}, row(2, 6 * S, 7 * S)]
    # or before it is known which one that is
    found = recounted(rows, Recount(until=6 * S, ends=[S // 2, 6 * S]))
    assert found[1:] == [{**row(1, 6 * S, 6 * S), **unknown}, row(2, 6 * S, 7 * S)]


def test_a_step_may_end_within_the_row_that_follows() -> None:
    # Given the end of the first step shows only when the critic steps again
    found = recounted([row(0, 0, S), row(1, S, 6 * S)], Recount(until=S, ends=[3 * S]))
    assert found == [{**row(0, 0, 3 * S), "cpu": None}, {**row(1, 3 * S, 6 * S), "cpu": None}]


def test_without_the_ends_only_the_steps_that_follow_are_known() -> None:
    rows = [row(0, 0, S), row(1, S, 2 * S), row(7, 2 * S, 3 * S), row(8, 3 * S, 4 * S)]
    found = recounted(rows, Recount(until=2 * S, ends=[]))
    assert found == [{"ts": 3 * S, "dur": None, "number": 7, "cpu": None}, row(8, 3 * S, 4 * S)]
