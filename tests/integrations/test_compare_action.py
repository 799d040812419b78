"""The GitHub action that compares a pull request with its base: its shell part, on a small repository."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.comparison.turns.conftest import PROGRAM

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed (group test)")

ACTION = Path(__file__).resolve().parents[2] / ".github" / "actions" / "compare"
SCRIPT = ACTION / "compare.sh"

#: In the place of GitHub: it notes what it is asked, and knows the comments that a file lists.
GH = """#!{python}
import json, pathlib, sys
here = pathlib.Path({folder!r})
words = [open(word[6:]).read() if word.startswith("body=@") else word for word in sys.argv[1:]]
with open(here / "asked", "a") as file:
    file.write(json.dumps(words) + "\\n")
if (here / "refuses").exists():
    sys.exit(1)
if "--jq" in sys.argv and (here / "known").exists():
    print((here / "known").read_text())
"""


class Done(NamedTuple):
    """What an execution of the action left: exit code, output, summary, outputs, and what GitHub was asked."""

    code: int
    said: str
    summary: str
    outputs: str
    asked: list[list[str]]


class Repository:
    """A repository whose working tree is another revision than its base, and the programs that the action calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "repository"
        self.programs = folder / "programs"
        self.root.mkdir()
        self.programs.mkdir()
        (self.root / "program.py").write_text(PROGRAM)
        (self.root / "took").write_text("1000000")
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "base")
        self.program("stepscope", f'#!/bin/sh\nexec {sys.executable} -m stepscope "$@"\n')
        self.program("gh", GH.format(python=sys.executable, folder=str(folder)))

    def git(self, *words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=self.root, check=True, capture_output=True)

    def program(self, name: str, text: str) -> None:
        path = self.programs / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, command: str, **variables: str) -> Done:
        """Execute the shell part as the action does."""
        for name in ("summary", "outputs", "asked"):
            (self.folder / name).write_text("")
        given = {
            "COMMAND": command,
            "AGAINST": "main",
            "FAIL_ON": "slower:5%",
            "ARGUMENTS": "--pairs 3 --seconds 0.01 --no-explain",
            "COMMENT_ON": "7",
            "GH_TOKEN": "secret",
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_OUTPUT": str(self.folder / "outputs"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            **variables,
        }
        done = subprocess.run(
            ["bash", str(SCRIPT)],
            cwd=self.root,
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        summary, outputs, asked = ((self.folder / name).read_text() for name in ("summary", "outputs", "asked"))
        words = [json.loads(line) for line in asked.splitlines()]
        return Done(done.returncode, done.stdout + done.stderr, summary, outputs, words)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.slow
def test_a_slower_pull_request_fails_and_has_one_comment(repository: Repository, tmp_path: Path) -> None:
    (repository.root / "took").write_text("1200000")
    command = f"{sys.executable} program.py $(cat took) 0 100000 {tmp_path / 'saw'}"
    done = repository.run(command)
    assert done.code == 3, done.said
    assert done.outputs == "verdict=slower\n"
    assert "Slower: +20.0 %" in done.summary
    assert "slower:5% FAILED" in done.summary
    assert all(line.startswith("    ") for line in done.summary.splitlines()[2:] if line)
    looked, wrote = done.asked
    assert "repos/owner/name/issues/7/comments" in looked
    assert wrote[:5] == ["api", "--silent", "--method", "POST", "repos/owner/name/issues/7/comments"]
    mark, _, body = wrote[-1].partition("\n")
    assert re.fullmatch(r"<!-- stepscope compare [0-9a-f]{12} -->", mark)
    assert mark in looked[-1]
    assert body == done.summary
    # When the pull request changes, the same comment is edited
    (tmp_path / "known").write_text("4711\n4712\n")
    again = repository.run(command, FAIL_ON="")
    assert again.code == 0
    assert again.asked[1][3:5] == ["PATCH", "repos/owner/name/issues/comments/4711"]
    # And without the right to write there, the result stays
    (tmp_path / "refuses").touch()
    refused = repository.run(command)
    assert refused.code == 3
    assert "::warning::" in refused.said


def test_what_cannot_be_compared_is_said(repository: Repository) -> None:
    done = repository.run("exit 1 # `x`\n<b>", COMMENT_ON="")
    assert done.code not in (0, 3, 6)
    assert "There was no comparison" in done.summary
    assert done.summary.splitlines()[0] == "### stepscope: `exit 1 #  x  <b>` against the base"
    assert (done.asked, done.outputs) == ([], "")


def test_the_script_gets_its_inputs_as_variables() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    assert action["runs"]["using"] == "composite"
    assert "${{" not in step["run"]
    given: Mapping[str, str] = step["env"]
    used = set(re.findall(r"inputs\.([a-z-]+)", json.dumps(step)))
    assert used == set(action["inputs"])
    script = SCRIPT.read_text(encoding="utf-8")
    assert all(f"${name}" in script or f"${{{name}" in script for name in given if name != "GH_TOKEN")
    assert action["outputs"]["verdict"]["value"] == f"${{{{ steps.{step['id']}.outputs.verdict }}}}"


def test_the_workflow_of_the_documents_gives_inputs_that_the_action_has() -> None:
    page = (ACTION.parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
    (pasted,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    workflow, action = yaml.safe_load(pasted), yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    used = workflow["steps"][-1]
    assert used["uses"].endswith(f"/{ACTION.relative_to(ACTION.parents[2]).as_posix()}@main")
    assert set(used["with"]) <= set(action["inputs"])
    assert {name for name, one in action["inputs"].items() if one.get("required")} <= set(used["with"])
    table = set(re.findall(r"^\| `([a-z-]+)` \|", page.partition("| input |")[2], re.M))
    assert table == set(action["inputs"])
