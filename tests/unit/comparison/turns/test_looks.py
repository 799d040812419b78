"""Pairs until the answer is clear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.comparison.comparison import TURNS, Comparison
from stepscope.comparison.turns.live_pair import PairPlan
from stepscope.comparison.turns.looks import TurnsPlan, compare_in_turns
from stepscope.comparison.turns.programs import ProgramInTurns
from stepscope.comparison.wording import headline


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def compared(a: str, b: str, pairs: tuple[int, ...] = (3, 5)) -> Comparison:
    programs = (ProgramInTurns(each, Path.cwd(), name) for each, name in ((a, "a"), (b, "b")))
    return compare_in_turns(*programs, TurnsPlan(pairs, pair=PairPlan(seconds=0.01)))


def test_a_slower_program_is_called_slower_after_the_first_look(command: Callable[..., str]) -> None:
    found = compared(command(1_000_000), command(1_080_000))
    assert (found.design, found.verdict, found.looks) == (TURNS, "slower", 1)
    assert found.step is not None
    assert found.step.change == pytest.approx(0.08, abs=0.001)
    assert [one.outcome for one in found.judge("slower:5%")] == ["failed"]
    assert headline(found).startswith("Slower: +8.0 % (")


def test_an_unchanged_program_is_no_difference(command: Callable[..., str]) -> None:
    found = compared(command(1_000_000), command(1_000_000))
    assert found.verdict == "no difference"
    assert headline(found).startswith("No difference")


def by_the_luck_of_the_heap(lucky: str, unlucky: str, chance: Path) -> str:
    """Return a command that is lucky every second time."""
    return f"echo x >> {chance}; if [ $(($(wc -l < {chance}) % 2)) = 0 ]; then {lucky}; else {unlucky}; fi"


@pytest.mark.parametrize(("b_ns", "verdict"), [(10_000_000, "no difference"), (10_800_000, "slower")])
def test_a_lottery_of_page_faults_is_named_and_ends_with_a_calm_heap(
    command: Callable[..., str], tmp_path: Path, b_ns: int, verdict: str
) -> None:
    commands = []
    for side, took in (("a", 10_000_000), ("b", b_ns)):
        lucky, unlucky = command(took), command(took + 750_000, faults=1000)
        chance = by_the_luck_of_the_heap(lucky, unlucky, tmp_path / side)
        commands.append(f'if [ "$MALLOC_TRIM_THRESHOLD_" = -1 ]; then {lucky}; else {chance}; fi')
    found = compared(*commands)
    assert (found.verdict, found.looks) == (verdict, 1)
    assert found.causes == ["page-faults"]
    [note] = found.notes
    assert "the luck of the heap" in note
    assert "the turns started over with MALLOC_TRIM_THRESHOLD_=-1" in note
    assert found.machine.faults == (0, 0)


def test_a_lottery_that_a_calm_heap_does_not_end_is_not_taken_for_a_difference(
    command: Callable[..., str], tmp_path: Path
) -> None:
    lucky, unlucky = command(10_000_000), command(10_750_000, faults=1000)  # faults take about 750 ns each
    found = compared(lucky, by_the_luck_of_the_heap(lucky, unlucky, tmp_path / "chance"), (3,))
    assert found.verdict == "no difference"
    assert found.causes == ["page-faults"]
    assert "the luck of the heap" in " ".join(found.notes)
