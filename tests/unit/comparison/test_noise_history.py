"""What a machine remembers of how well it repeats itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stepscope.comparison.noise_history import history_path, known_spread, machine_key, remember
from stepscope.comparison.verdict import SHIPPED


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_nothing_is_known_at_first() -> None:
    assert known_spread(machine_key("train", turns=True), turns=True) == SHIPPED[True]
    assert known_spread(None, turns=False) == SHIPPED[False]


def test_comparisons_are_pooled_with_what_is_shipped_and_count_once() -> None:
    key = machine_key("train", "torch", turns=True)
    for _ in range(2):
        remember(key, 4 * 0.01**2, 4, "first")
    remember(key, 2 * 0.01**2, 2, "second")
    found = known_spread(key, turns=True)
    assert (found.freedom, found.source) == (8, "history")
    assert found.size == pytest.approx(math.sqrt((2 * 0.025**2 + 6 * 0.01**2) / 8))
    assert known_spread(machine_key("other", "torch", turns=True), turns=True) == SHIPPED[True]
    assert known_spread(key, turns=True, of="first").freedom == 4


def test_a_damaged_file_is_made_again() -> None:
    history_path().parent.mkdir(parents=True)
    history_path().write_text("{")
    key = machine_key("train", turns=False)
    remember(key, 0.01, 3, "x")
    assert known_spread(key, turns=False).freedom == 5
    assert history_path().stat().st_mode & 0o777 == 0o600


def test_only_the_latest_are_kept() -> None:
    key = machine_key("train", turns=False)
    for number in range(30):
        remember(key, 0.01, 1, str(number))
    assert known_spread(key, turns=False).freedom == 22
