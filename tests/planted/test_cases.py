"""Each planted program has a case whose cause is in the catalogue; some are run, and their cause is found."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.advise.finding import CAUSES, MISFITS
from tests.planted.cases import BY_NAME, CASES, PROGRAMS
from tests.planted.evaluate import judge
from tests.planted.measure import ROOT, TrueTimes, profiled

#: What several programs share.
_SHARED = {"ticks", "torch_parts"}
#: Programs whose cause is in what they call, whatever else the machine does.
_SURE = (
    *("anomaly_mode", "double_precision", "growing_graph", "optimizer_loop", "padding", "sample_loop", "stop_script"),
    *("teacher_gradients", "jax_callback", "jax_not_donated", "sleep_each_step", "posted_metrics"),
    *("ignored_labels", "growing_sequences", "jax_frozen"),
)


def test_each_program_is_a_case_whose_cause_is_in_the_catalogue() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} - _SHARED == set(BY_NAME)
    assert len(CASES) >= 30
    sections = {line.removeprefix("### ") for line in (ROOT / "docs/findings.md").read_text().splitlines()}
    assert all(case.causes & sections for case in CASES)


def programs_of_examples(page: str) -> dict[str, set[str]]:
    """Return the programs that the examples of each cause name, in parentheses behind what they change."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for cause, text in re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL):
        for row in re.findall(r"^\| before, after \| (.*) \|$", text, flags=re.MULTILINE):
            found[cause] |= {name for names in re.findall(r"\((`\w+`(?:, `\w+`)*)\)", row) for name in _names(names)}
    return dict(found)


def _names(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def faults_of_examples(page: str) -> Iterator[str]:
    """Yield what does not fit between the programs and the examples of before and after."""
    examples = programs_of_examples(page)
    for cause, names in examples.items():
        yield from (f"{cause} names {name}, which is not planted" for name in names - set(BY_NAME))
        yield from (f"{name} is not a case of {cause}" for name in names & set(BY_NAME) if not _is_of(name, cause))
    named = set().union(*examples.values())
    yield from (f"no example names {case.name}" for case in CASES if case.name not in named)


def _is_of(name: str, cause: str) -> bool:
    return cause in BY_NAME[name].causes


def test_examples_name_the_programs_that_are_planted_for_their_cause() -> None:
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    assert set(programs_of_examples(page)) == CAUSES - MISFITS
    assert not list(faults_of_examples(page))


def test_examples_that_name_wrong_programs_are_seen() -> None:
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    for before, after, fault in (
        ("(`padding`)", "(`paddings`)", "padding names paddings, which is not planted"),
        ("(`padding`)", "(`slow_collate`)", "slow_collate is not a case of padding"),
        ("(`plain_attention`)", "", "no example names plain_attention"),
    ):
        assert fault in list(faults_of_examples(page.replace(before, after)))


def told(node: ast.AST) -> Iterator[str]:
    """Yield the texts of a test, but those of findings that it makes itself, and those that it says are not told."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"finding", "Finding"}:
        return
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn | ast.NotEq):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from told(child)


def test_each_cause_of_an_example_is_told_in_a_unit_test() -> None:
    files = (ROOT / "tests/unit/advise").rglob("test_*.py")
    texts = {text for file in files for text in told(ast.parse(file.read_text(encoding="utf-8")))}
    assert not CAUSES - MISFITS - texts
    assert not {*told(ast.parse("assert 'a' not in x\nassert 'b' != y\nlook(finding('c', 1))"))} & {"a", "b", "c"}


def test_the_first_finding_and_its_gain_are_judged() -> None:
    case, times = BY_NAME["double_precision"], TrueTimes([10e6, 12e6, 11e6], [6e6, 5e6, 7e6])
    busy = {"cause": "other-processes", "gain_ns": 9e6}
    right = judge(case, times, [busy, {"cause": "double-precision", "gain_ns": 7e6}], [busy])
    assert (right["named"], right["gain_right"], right["on_twin"]) == (True, True, [])
    far = judge(case, times, [{"cause": "double-precision", "gain_ns": 8e6}], [])
    assert (far["named"], far["gain_right"]) == (True, False)
    assert (right["caused"], judge(case, TrueTimes([10e6], [9.5e6]), [], [])["caused"]) == (True, False)
    late = judge(case, times, [{"cause": "slow-rank"}, {"cause": "double-precision", "gain_ns": 5e6}], [{"cause": "x"}])
    assert (late["named"], late["listed"], late["on_twin"]) == (False, True, ["x"])


@pytest.mark.slow
@pytest.mark.parametrize("name", _SURE)
def test_the_cause_is_found_and_not_on_the_repaired_twin(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    for repaired in (False, True):
        document, _ = profiled(case, tmp_path / str(repaired), 40, repaired=repaired)
        causes = {finding["cause"] for finding in document["findings"]}
        assert bool(causes & case.causes) is not repaired, causes
