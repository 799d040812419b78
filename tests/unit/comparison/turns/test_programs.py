"""What takes turns: revisions have a tree of their own, which is removed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepscope.comparison.turns.programs import WORKING_TREE, two_programs
from stepscope.errors import UsageError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "inside").mkdir(parents=True)
    (root / "inside" / "train.py").write_text("old")

    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "first")
    (root / "inside" / "train.py").write_text("new")
    return root


def trees(root: Path) -> int:
    listed = subprocess.run(["git", "worktree", "list"], cwd=root, check=True, capture_output=True, text=True)
    return len(listed.stdout.splitlines())


def test_a_revision_is_checked_out_beside_and_removed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{repository / 'inside'}:/elsewhere")
    with two_programs("python train.py", "main", repository / "inside") as (a, b):
        assert (a.directory / "train.py").read_text() == "old"
        assert (b.directory / "train.py").read_text() == "new"
        assert (a.name, b.name) == ("main", WORKING_TREE)
        assert len(a.revision) == 9
        assert a.environment == {"PYTHONPATH": f"{a.directory}:/elsewhere"}
        assert trees(repository) == 2
    assert trees(repository) == 1
    assert not a.directory.exists()


def test_a_program_named_by_its_whole_path_is_that_of_the_revision(repository: Path) -> None:
    python = repository / "venv" / "python"  # git does not know it
    command = f"{python} '{repository}/inside/train.py' --out={repository}/new"
    with two_programs(command, "main", repository) as (a, b):
        assert a.command == f"{python} '{a.directory}/inside/train.py' --out={repository}/new"
        assert b.command == command


def test_another_command_is_compared_where_it_stands(repository: Path) -> None:
    with two_programs("python train.py", "python other.py", repository) as (a, b):
        assert (a.command, a.directory) == ("python other.py", repository)
        assert (b.command, b.name) == ("python train.py", "python train.py")


def test_what_is_neither_revision_nor_command_is_refused(repository: Path) -> None:
    with (
        pytest.raises(UsageError, match="neither a revision"),
        two_programs("python train.py", "no-such-branch", repository),
    ):
        pass


def test_without_another_the_program_is_compared_with_itself(tmp_path: Path) -> None:
    with two_programs("python train.py", None, tmp_path) as (a, b):
        assert a.command == b.command
