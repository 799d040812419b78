"""A module's import is noticed without importing it, and leaves no trace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepscope.collect.hooks.post_import import when_imported


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "late_module.py").write_text("VALUE = 1\n")
    (tmp_path / "broken_module.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("late_module", "broken_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "late_module"


def test_the_action_runs_once_the_module_is_whole(module: str) -> None:
    seen: list[object] = []
    before = list(sys.meta_path)
    when_imported(module, lambda: seen.append(sys.modules[module].VALUE))
    assert seen == []
    imported = __import__(module)
    assert seen == [1]
    # and the import system is as it was
    assert sys.meta_path == before
    assert "exec_module" not in vars(imported.__loader__)
    assert imported.__spec__.loader is imported.__loader__
    del sys.modules[module]
    __import__(module)
    assert seen == [1]


def test_a_module_that_is_there_already_counts() -> None:
    seen: list[int] = []
    when_imported("sys", lambda: seen.append(1))
    assert seen == [1]


def test_the_wish_can_be_withdrawn(module: str) -> None:
    seen: list[int] = []
    before = list(sys.meta_path)
    withdraw = when_imported(module, lambda: seen.append(1))
    withdraw()
    withdraw()
    __import__(module)
    assert seen == []
    assert sys.meta_path == before


def test_a_module_that_fails_to_import_fails_as_before(module: str) -> None:
    seen: list[int] = []
    before = list(sys.meta_path)
    when_imported("broken_module", lambda: seen.append(1))
    with pytest.raises(ValueError, match="broken"):
        __import__("broken_module")
    assert seen == []
    assert sys.meta_path == before


def test_a_module_that_does_not_exist_is_still_missing() -> None:
    withdraw = when_imported("no_such_module_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_anywhere")
    withdraw()
