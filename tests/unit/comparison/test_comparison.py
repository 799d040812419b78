"""Two captures against each other, from files to the answer: expected are the numbers they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.comparison.comparison import RUNS, SINGLE
from stepscope.comparison.wording import headline
from stepscope.errors import InputError, UsageError
from tests.samples import SAMPLES
from tests.unit.comparison.conftest import OPERATORS, MakeCapture, Operators


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_itself_and_only_phases_of_another_are_told(
    name: str, tmp_path: Path, capture: MakeCapture
) -> None:
    path = SAMPLES[name](tmp_path)
    same, other = stepscope.compare(path, path), stepscope.compare(path, capture("other.json"))
    assert same.parts is not None
    assert same.parts.sure == []
    assert {part.matched for part in same.parts.parts} <= {"same"}
    for found in (same, other):
        json.dumps(found.to_dict(found.judge("slower:5%,memory:2%,count:x,operator:y:5%")), allow_nan=False)
        assert headline(found).endswith(".")
    if other.a.environment["device"] != "cpu":
        assert other.parts is not None
        assert other.parts.parts == []


def changed(name: str, factor: float) -> Operators:
    return [(each, time * (factor if each == name else 1), shapes) for each, time, shapes in OPERATORS]


def test_one_slower_operator_of_a_slower_machine(capture: MakeCapture) -> None:
    a = capture("a.json")
    b = capture("b.json", changed("aten::mm", 1.6), machine=1.25)
    found = stepscope.compare(a, b)
    assert found.design == SINGLE
    assert found.verdict == "one run a side"
    assert found.parts is not None
    assert [part.name for part in found.parts.sure] == ["aten::mm"]
    assert found.parts.change_ns == pytest.approx(600_000, rel=0.01)
    assert found.parts.common == pytest.approx(0.25, abs=0.01)
    assert headline(found).startswith("One run a side: aten::mm +600 µs, sure; all else together +25.0 %: the machine")


def test_runs_that_were_looked_at_are_named_by_their_directories(capture: MakeCapture, tmp_path: Path) -> None:
    for side in ("a", "b"):
        assert main(["import", str(capture(f"{side}.json")), "--output", str(tmp_path / side), "--quiet"]) == 0
    runs = [stepscope.open(tmp_path / side) for side in ("a", "b")]
    assert all(run.summary.steps.count for run in runs)
    found = stepscope.compare(*runs)
    assert [found.a.name, found.b.name] == [run.path.name for run in runs]
    assert [found.a.runs, found.b.runs] == [[str(run.path)] for run in runs]


def test_an_unchanged_program_has_no_change(capture: MakeCapture) -> None:
    found = stepscope.compare(capture("a.json"), capture("b.json", machine=1.3))
    assert found.parts is not None
    assert found.parts.sure == []
    assert "counts" in (told := found.to_dict())
    assert told["counts"] == []
    assert (told["only_a"], told["only_b"]) == ([], [])


def test_calls_shapes_and_new_operators_are_exact(capture: MakeCapture) -> None:
    more: Operators = [*OPERATORS, ("aten::copy_", 50, [[8]]), ("aten::copy_", 50, [[8]])]
    wider: Operators = [(name, time, [[16, 8]] if name == "aten::relu" else shapes) for name, time, shapes in more]
    found = stepscope.compare(capture("a.json"), capture("b.json", wider))
    assert found.parts is not None
    (copy,) = [part for part in found.parts.parts if part.name == "aten::copy_"]
    assert (copy.calls_a, copy.calls_b, copy.varies) == (0, 2, False)
    assert [(one.name, one.a, one.b) for one in found.parts.shapes] == [("aten::relu", ["[[8,8]]"], ["[[16,8]]"])]
    outcomes = {one.rule: one.outcome for one in found.judge("count:aten::copy_,count:aten::mm,count:aten::none")}
    assert outcomes == {"count:aten::copy_": "failed", "count:aten::mm": "passed", "count:aten::none": "passed"}


def test_several_runs_a_side_give_the_step_an_interval(capture: MakeCapture, tmp_path: Path) -> None:
    a = [capture(f"a{number}.json", machine=1 + 0.002 * number) for number in range(5)]
    b = [capture(f"b{number}.json", machine=1.2 + 0.002 * number) for number in range(5)]
    found = stepscope.compare(a, b)
    assert found.design == RUNS
    assert found.step is not None
    assert (found.verdict, found.step.runs) == ("slower", (5, 5))
    assert found.step.low is not None
    assert found.step.high is not None
    assert 0.18 < found.step.low < found.step.change < found.step.high < 0.22
    assert [one.outcome for one in found.judge("slower:5%")] == ["failed"]
    assert [one.outcome for one in stepscope.compare(b, a).judge("slower:5%")] == ["passed"]


def test_a_limit_on_one_run_a_side_cannot_tell_unless_an_operator_does(capture: MakeCapture) -> None:
    a, same, slow = capture("a.json"), capture("b.json"), capture("c.json", changed("aten::mm", 1.6))
    limits = "slower:5%,operator:aten::mm:10%"
    assert [one.outcome for one in stepscope.compare(a, same).judge(limits)] == ["cannot tell", "passed"]
    assert [one.outcome for one in stepscope.compare(a, slow).judge(limits)] == ["failed", "failed"]


def test_the_answer_is_json_and_a_table(capture: MakeCapture) -> None:
    found = stepscope.compare(capture("a.json"), capture("b.json", changed("aten::mm", 1.6)))
    told = json.loads(json.dumps(found.to_dict(found.judge("memory:2%")), allow_nan=False))
    assert told["schema"] == 1
    assert told["gates"][0]["outcome"] == "cannot tell"
    assert told["memory"] == []
    assert told["machine"] == {"delay": [None, None], "faults": [None, None]}
    table = found.table()
    assert table.filter(table["sure"])["name"].to_list() == ["aten::mm"]


@pytest.mark.parametrize("limit", ["slower", "slower:x%", "operator:10%", "size:3%", "memory:aten::mm:2%"])
def test_a_limit_that_is_none_is_refused(capture: MakeCapture, limit: str) -> None:
    found = stepscope.compare(capture("a.json"), capture("b.json"))
    with pytest.raises(UsageError, match="is not a limit"):
        found.judge(limit)


def test_sides_that_cannot_be_compared_are_refused(capture: MakeCapture, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        stepscope.compare(capture("a.json"), tmp_path / "none")
    with pytest.raises(UsageError, match="rank 7"):
        stepscope.compare(capture("a.json"), capture("b.json"), rank=7)
