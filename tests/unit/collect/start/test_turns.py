"""The side of the program: it hands over at the end of a step, and nothing of the pause belongs to a step."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.collect.start import turns
from stepscope.collect.start.turns import TurnTaker
from stepscope.collect.steps import Stepped

PAUSE_NS = 300_000_000


class Hooks:
    """Step hooks that the test calls."""

    observe: Any = None

    def install(self, *, late: bool) -> None:
        """Do nothing."""


class Owner:
    """An optimizer."""


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> type[Hooks]:
    def make(framework: str, observe: Any) -> Hooks:
        Hooks.observe = staticmethod(observe)
        return Hooks()

    monkeypatch.setattr(turns, "make_hooks", make)
    monkeypatch.setattr(turns, "when_imported", lambda name, action: action() if name == "torch" else None)
    return Hooks


class Partner(threading.Thread):
    """The other end: notes what it is told, and answers after a pause."""

    def __init__(self, path: Path, turns_given: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.turns_given = turns_given
        self.told: list[dict[str, Any]] = []

    def run(self) -> None:
        connection = self.listener.accept()[0]
        with connection, connection.makefile("rb") as lines:
            for _ in range(self.turns_given):
                self.told.append(json.loads(lines.readline()))
                time.sleep(PAUSE_NS / 1e9)
                connection.sendall(b'{"slice_ns": 1, "cores": null}\n')
            self.told.append(json.loads(lines.readline()))


def test_times_are_sent_in_turns_and_pauses_belong_to_no_step(hooks: type[Hooks], tmp_path: Path) -> None:
    partner = Partner(tmp_path / "socket", 2)
    partner.start()
    TurnTaker(str(tmp_path / "socket")).install()
    step = Stepped(Owner(), "Adam", "test")
    for _ in range(8):
        hooks.observe(step)
    partner.join(30)
    partner.listener.close()
    rows = [row for told in partner.told for row in told["rows"]]
    assert [len(told["rows"]) for told in partner.told] == [0, 1, 1]
    for wall, delay, faults in rows:
        assert 0 < wall < PAUSE_NS
        assert delay is None or delay >= 0
        assert faults >= 0
    for _ in range(3):  # the other end is gone: the program goes on
        hooks.observe(step)


def test_without_the_other_end_the_program_goes_on(hooks: type[Hooks], tmp_path: Path) -> None:
    TurnTaker(str(tmp_path / "none")).install()
    step = Stepped(Owner(), "Adam", "test")
    for _ in range(20):
        hooks.observe(step)
