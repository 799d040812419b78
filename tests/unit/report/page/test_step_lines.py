"""Steps as lines: each piece has the part that takes most of it, by a count of single nanoseconds."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.analyse.intervals import EMPTY, Intervals
from stepscope.analyse.step.activity import Windows, Work
from stepscope.analyse.step.step_trace_time import PARTS, Split, split
from stepscope.report.page.step_lines import step_lines

DATA = Path(__file__).parents[3] / "data" / "kineto"
WORK = Work(
    on_device=False,
    computing=EMPTY,
    communication=EMPTY,
    receiving=EMPTY,
    copying=EMPTY,
    data=EMPTY,
    host=EMPTY,
)


def some(*pairs: tuple[int, int]) -> Intervals:
    starts, ends = zip(*pairs, strict=True)
    return Intervals(np.array(starts, np.int64), np.array(ends, np.int64))


def made(unknown: frozenset[str] = frozenset()) -> Split:
    windows = Windows(np.array([4, 5]), np.array([0, 1_000]), np.array([1_000, 1_700]), declared=True)
    layers = dict.fromkeys(PARTS[:-1], EMPTY) | {
        "computing": some((0, 400), (1_000, 1_203)),
        "communication": some((300, 600)),
        "data wait": some((1_203, 1_600)),
    }
    return Split(WORK, windows, {}, layers, unknown)


@pytest.mark.parametrize("unknown", [frozenset[str](), frozenset(PARTS[3:])])
def test_each_piece_has_the_part_that_takes_most_of_it(unknown: frozenset[str]) -> None:
    of = made(unknown)
    found = step_lines(of)
    assert found is not None
    known = [name for name in PARTS[:-1] if name not in unknown]
    rest = "not known" if unknown else "idle"
    covers = {name: {*chain.from_iterable(map(range, of.layers[name].start, of.layers[name].end))} for name in known}
    for line, (begin, end) in zip(found["lines"], [(0, 1_000), (1_000, 1_700)], strict=True):
        pieces = list(chain.from_iterable(repeat(found["parts"][part], count) for part, count in line["runs"]))
        assert len(pieces) == -(-(end - begin) // found["piece"]) <= found["pieces"]
        for number, piece in enumerate(pieces):
            first = begin + number * found["piece"]
            times = range(first, min(first + found["piece"], end))
            taken = Counter(next((name for name in known if ns in covers[name]), rest) for ns in times)
            assert taken[piece] == max(taken.values())


def test_lines_of_a_real_capture_are_its_steps() -> None:
    of = split(stepscope.open(DATA / "cuda_event_sync.json.gz").ranks[0].shown)
    found = step_lines(of)
    if not of.windows.declared:
        assert found is None
        return
    assert found is not None
    assert [line["step"] for line in found["lines"]] == list(range(len(of.windows.start)))


def test_of_many_steps_some_are_drawn() -> None:
    start = np.arange(1_000) * 10
    windows = Windows(np.arange(1_000), start, start + 10, declared=True)
    found = step_lines(Split(WORK, windows, {}, dict.fromkeys(PARTS[:-1], EMPTY)))
    assert found is not None
    assert len(found["lines"]) == 40
    assert (found["lines"][0]["step"], found["lines"][-1]["step"]) == (0, 999)
    assert step_lines(Split(WORK, Windows(start[:0], start[:0], start[:0], declared=False), {}, {})) is None
