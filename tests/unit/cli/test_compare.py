"""The verb: what it prints at 80 columns, what it writes, and its exit codes."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from stepscope.cli.main import main
from stepscope.comparison.comparison import Comparison, Side
from stepscope.comparison.part_changes import PartChange, PartChanges
from stepscope.report.terminal.comparison_screen import render_comparison
from tests.unit.comparison.conftest import OPERATORS, MakeCapture, capture  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def sides(capture: MakeCapture) -> list[str]:  # noqa: F811 - the fixture
    slow = [(name, time * (1.6 if name == "aten::mm" else 1), shapes) for name, time, shapes in OPERATORS]
    return [str(capture("a.json")), str(capture("b.json", slow))]


def test_the_screen_says_what_became_slower(sides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *sides]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "One run a side: aten::mm +600 µs, sure" in text
    assert "\x1b" not in text


def test_a_run_on_both_sides_is_said(sides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", sides[0], sides[0]]) == 0
    assert "on both sides, so that it says nothing of a difference" in " ".join(capsys.readouterr().out.split())


def test_an_operator_that_another_phase_calls_is_not_gone() -> None:
    def part(phase: str, name: str, calls: tuple[float, float]) -> PartChange:
        names = [name if count else "" for count in calls]
        return PartChange(
            place="host", phase=phase, name_a=names[0], name_b=names[1], module="", matched="same", calls_a=calls[0],
            calls_b=calls[1], varies=False, a_ns=1.0, b_ns=1.0, change_ns=0.0, low_ns=0.0, high_ns=0.0, errors=0.0,
            sure=False,
        )  # fmt: skip

    parts = [part("forward", "copy", (3, 0)), part("backward", "copy", (2, 5)), part("forward", "add", (0, 1))]
    sides = (Side(name=name, runs=[]) for name in "ab")
    found = Comparison(a=next(sides), b=next(sides), design="single runs", parts=PartChanges(common=0.0, parts=parts))
    screen = StringIO()
    render_comparison(found, [], Console(file=screen, width=80))
    lines = [line.split() for line in screen.getvalue().splitlines() if line.startswith(" calls")]
    assert lines == [["calls", "new:", "add"]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fail-on", "operator:aten::mm:10%"], 3),
        (["--fail-on", "operator:aten::relu:10%"], 0),
        (["--fail-on", "memory:2%"], 0),
        (["--fail-on", "memory:2%", "--strict"], 6),
        (["--fail-on", "memory:2%", "--fail-on", "count:aten::mm", "--strict"], 6),
        (["--fail-on", "slower:5%", "--strict"], 3),
        (["--fail-on", "quicker:5%"], 2),
    ],
)
def test_limits_end_with_their_exit_codes(
    sides: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert main(["compare", *sides, *arguments]) == code
    said = capsys.readouterr().err
    assert ("cannot be told" in said) == ("memory:2%" in arguments)


def test_files_hold_all_of_it(sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *sides, "-q", "--json", str(tmp_path / "all.json"), "--csv", str(tmp_path / "a.csv")]) == 0
    assert capsys.readouterr().out == ""
    told = json.loads((tmp_path / "all.json").read_text())
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert len(rows) == len(told["operators"]) + len(told["only_a"]) + len(told["only_b"])
    assert [row["name"] for row in rows if row["sure"] == "true"] == ["aten::mm"]
    assert main(["compare", *sides, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_the_same_comparison_says_the_same_again(tmp_path: Path, capture: MakeCapture) -> None:  # noqa: F811
    for side, machine in (("a", 1.0), ("b", 1.2)):
        for number in range(2):
            made = capture(f"{side}{number}.json", machine=machine * (1 + 0.03 * number))
            options = ["--output", str(tmp_path / side), "--quiet"]
            assert main(["import", str(made), *options]) == 0
    told = []
    for number in range(2):
        file = tmp_path / f"{number}.json"
        assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "-q", "--json", str(file)]) == 0
        told.append(json.loads(file.read_text()))
    assert told[0]["level"] == told[1]["level"]
    assert told[0]["a"]["runs"] == sorted(map(str, (tmp_path / "a").iterdir()))


def test_two_sides_are_needed(sides: list[str]) -> None:
    assert main(["compare", sides[0]]) == 2
    assert main(["compare", sides[0], "nowhere"]) == 4
