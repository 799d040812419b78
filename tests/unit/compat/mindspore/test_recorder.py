"""A profile that another one replaces ends before the other begins; both have their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.compat.mindspore import Profiler, profile

CELL = """
p = MAKE()
work.append(1)
"""
IN_FUNCTION = """
def cell():
    p = MAKE()
    work.append(1)
    p = MAKE()
    work.append(1)
    p.stop()
    return p
p = cell()
"""
CAUGHT = """
def cell():
    p = MAKE()
    p.start()
try:
    cell()
except RuntimeError as error:
    kept = error
p = MAKE()
work.append(1)
p.stop()
"""


def recorded_ranks() -> list[Path]:
    return sorted(path.parent for path in Path("data").glob("*/rank*/manifest.json"))


@pytest.mark.parametrize("make", [profile, Profiler])
def test_a_cell_that_is_run_again(make: type, caplog: pytest.LogCaptureFixture) -> None:
    space = {"MAKE": make, "work": []}
    for _ in range(3):
        exec(compile(CELL, "<cell>", "exec"), space)
    space["p"].stop()
    assert "another profile is already recording" not in caplog.text
    assert len(recorded_ranks()) == 3
    assert len(space["p"].recorded) == 1


@pytest.mark.parametrize("make", [profile, Profiler])
@pytest.mark.parametrize("code", [IN_FUNCTION, CAUGHT], ids=["in a function", "kept alive by an exception"])
def test_a_profile_that_nobody_can_reach_ends(make: type, code: str, caplog: pytest.LogCaptureFixture) -> None:
    space = {"MAKE": make, "work": []}
    exec(compile(code, "<cell>", "exec"), space)
    assert "another profile is already recording" not in caplog.text
    assert len(recorded_ranks()) == 2
    assert len(space["p"].recorded) == 1


def test_a_profile_that_is_kept_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    space = {"MAKE": profile, "work": []}
    exec(compile("p = MAKE()\nother = p\np = MAKE()", "<cell>", "exec"), space)
    assert "another profile is already recording" in caplog.text
    space["p"].stop()
    space["other"].stop()


def test_a_profile_that_another_function_holds_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> profile:
        p = profile()
        return p

    mine = make()
    other = make()
    assert "another profile is already recording" in caplog.text
    mine.stop()
    other.stop()
