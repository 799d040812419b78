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


def test_a_lottery_of_page_faults_is_named_and_not_taken_for_a_difference(
    command: Callable[..., str], tmp_path: Path
) -> None:
    # The heap of B is lucky in one pair of three; faults take about 750 ns each.
    lucky, unlucky = command(10_000_000), command(10_750_000, faults=1000)
    chance = tmp_path / "chance"
    b = f"echo x >> {chance}; if [ $(wc -l < {chance}) = 2 ]; then {lucky}; else {unlucky}; fi"
    found = compared(lucky, b, (3,))
    assert found.verdict == "no difference"
    assert found.causes == ["page-faults"]
    assert "the luck of the heap" in " ".join(found.notes)
