"""What the kernel says of a thread, and what lies between two readings."""

from __future__ import annotations

import pytest

from stepscope.collect.host.thread_figures import COLUMNS, Reading, between, figures_of, run_queue_delay

#: As ``getrusage`` returns it: page faults are 6 and 7, blocks 9 and 10, switches 14 and 15.
USAGE = (0.5, 0.1, 9000, 0, 0, 0, 10, 1, 0, 2, 3, 0, 0, 0, 40, 5)


def reading(thread: int = 7, line: bytes = b"5 10 2\n", cpu: int = 1000, **others: object) -> Reading:
    return (thread, line, cpu, others.get("usage", USAGE), others.get("waited"), others.get("ready"))  # type: ignore[return-value]


def step(before: Reading | None, after: Reading | None) -> dict[str, int | None]:
    return dict(zip(COLUMNS, between(figures_of(before), figures_of(after)), strict=True))


def test_a_kernel_that_does_not_count_gives_no_zero() -> None:
    assert run_queue_delay(b"0 0 0\n") is None
    assert run_queue_delay(b"") is None
    assert run_queue_delay(b"9 17 3\n") == 17


def test_a_step_is_what_lies_between_two_readings() -> None:
    later = (*USAGE[:6], 14, 1, 0, 4, 3, *USAGE[11:14], 42, 6)
    found = step(reading(waited=100), reading(line=b"9 17 3\n", cpu=1900, usage=later, waited=350, ready=4))
    assert found == {
        "cpu": 900, "delay": 7, "minor": 4, "major": 0, "read": 1024, "written": 0, "voluntary": 2, "involuntary": 1,
        "data": 250, "ready": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        (None, reading(waited=5), set()),
        (reading(), None, set()),
        (reading(thread=7), reading(thread=8, waited=5), {"data"}),  # each thread counts for itself
        (reading(usage=None), reading(), {"cpu", "delay"}),
        (reading(line=b""), reading(), set(COLUMNS) - {"delay", "data", "ready"}),
    ],
)
def test_what_one_of_them_does_not_say_is_unknown(
    before: Reading | None, after: Reading | None, known: set[str]
) -> None:
    assert {name for name, value in step(before, after).items() if value is not None} == known
