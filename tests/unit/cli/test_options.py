"""The bar that shows how much is read."""

from __future__ import annotations

import io

import pytest

from stepscope.cli.options import reading_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_appears_when_the_size_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with reading_progress(quiet=False) as progress:
        assert progress is not None
        progress(0, 0)
    assert "?" not in terminal.getvalue().replace("\x1b[?25", "")
    assert "reading" not in terminal.getvalue()
    with reading_progress(quiet=False) as progress:
        assert progress is not None
        progress(1_000_000, 2_000_000)
    assert "reading" in terminal.getvalue()
    assert "1.0/2.0 MB" in terminal.getvalue()


def test_there_is_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with reading_progress(quiet=False) as progress:
        assert progress is None
