"""Findings at lines of the program: as compilers write them, as SARIF 2.1.0, as commands of GitHub's workflows."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.report.annotations import ANNOTATIONS


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Three findings: at a line below the working directory, at one elsewhere with hostile text, and without a line."""
    monkeypatch.chdir(tmp_path)
    near, far = tmp_path / "my code" / "train.py", "/elsewhere/a:b,c%.py"
    return [
        Finding(
            cause="data-loader-slow",
            title="12 ms of 40 ms the training waits for data",
            gain_ns=12_000_000,
            step_ns=40_000_000,
            confidence=Confidence.MEASURED,
            evidence=(Evidence(text="no line"), Evidence(text="decodes", source=f"{near}:41")),
            remedy="Use workers.",
        ),
        Finding(
            cause="slow-python",
            title="50% in a\nloop \x1b[31m::error::x",
            confidence=Confidence.POSSIBLE,
            evidence=(Evidence(text="a line", source=f"{far}:7"),),
            remedy="Vectorise.",
        ),
        Finding(
            cause="machine-busy",
            title="Others use the cores.",
            evidence=(Evidence(text="a prompt", source="<stdin>:3"),),
            remedy="End them.",
        ),
    ]


def test_lines_are_those_of_a_compiler(found: list[Finding]) -> None:
    assert ANNOTATIONS["lines"](found).splitlines() == [
        "my code/train.py:41: 12 ms of 40 ms the training waits for data. Use workers. [data-loader-slow]",
        r"/elsewhere/a:b,c%.py:7: 50% in a loop \x1b[31m::error::x. Vectorise. [slow-python]",
        "stepscope: Others use the cores. End them. [machine-busy]",
    ]


def test_workflow_commands_hold_one_finding_each(found: list[Finding]) -> None:
    assert ANNOTATIONS["github"](found).splitlines() == [
        "::warning file=my code/train.py,line=41,title=stepscope%3A data-loader-slow::"
        "12 ms of 40 ms the training waits for data. Use workers.",
        "::notice file=/elsewhere/a%3Ab%2Cc%25.py,line=7,title=stepscope%3A slow-python::"
        r"50%25 in a loop \x1b[31m::error::x. Vectorise.",
        "::warning title=stepscope%3A machine-busy::Others use the cores. End them.",
    ]


def test_sarif_has_a_rule_for_each_cause_and_a_place_where_one_is_known(found: list[Finding]) -> None:
    log = json.loads(ANNOTATIONS["sarif"]([*found, found[0]]))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["data-loader-slow", "slow-python", "machine-busy"]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [*rules, rules[0]]
    assert [result["level"] for result in run["results"]] == ["warning", "note", "warning", "warning"]
    near, far, nowhere, _ = run["results"]
    assert near["properties"]["gain_ns"] == 12_000_000
    assert "gain_ns" not in far["properties"]  # unknown is not 0
    place = near["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "my%20code/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 41},
    }
    uri = far["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == "file:///elsewhere/a:b,c%.py"
    assert "locations" not in nowhere


def test_no_finding_is_an_empty_log() -> None:
    assert ANNOTATIONS["lines"]([]) == ANNOTATIONS["github"]([]) == ""
    assert json.loads(ANNOTATIONS["sarif"]([]))["runs"][0]["results"] == []
