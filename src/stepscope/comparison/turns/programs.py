"""What takes turns: a command in the working tree, another command, or the same command in another revision."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.errors import UsageError

#: Seconds that git may take.
_PATIENCE = 120
WORKING_TREE = "working tree"


@dataclass(frozen=True)
class ProgramInTurns:
    """A program that takes turns.

    Attributes:
        command: What a shell runs.
        directory: Where.
        name: What it is called: a revision, or the command.
        revision: The commit, if it is one.
        environment: Variables besides those of this process.
    """

    command: str
    directory: Path
    name: str
    revision: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def two_programs(command: str, against: str | None, directory: Path) -> Iterator[tuple[ProgramInTurns, ProgramInTurns]]:
    """Yield A, what the command is compared with, and B, the command in the working tree.

    Args:
        command: What a shell runs in ``directory``.
        against: A revision of git, which is checked out beside the repository's other trees and removed again; another
            command; None for the command itself, which shows how well the machine repeats itself.
        directory: A directory, of the repository if ``against`` is a revision.

    Raises:
        UsageError: ``against`` is neither a revision nor a command.
    """
    mine = ProgramInTurns(command, directory, WORKING_TREE)
    if against is None:
        yield ProgramInTurns(command, directory, "the same"), mine
        return
    commit = _git(directory, "rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    if commit is None:
        _refuse_what_is_no_command(against, directory)
        yield ProgramInTurns(against, directory, against), ProgramInTurns(command, directory, command)
        return
    root = Path(_git(directory, "rev-parse", "--show-toplevel") or directory)
    with tempfile.TemporaryDirectory(prefix="stepscope-") as scratch:
        tree = Path(scratch) / "tree"
        try:
            if _git(root, "worktree", "add", "--detach", "--quiet", str(tree), commit) is None:
                message = f"git cannot check out {against}."
                raise UsageError(message, f"Try: git worktree add DIR {shlex.quote(against)}.")
            inside = tree / directory.resolve().relative_to(root.resolve())
            if not inside.is_dir():
                message = f"{against} has no directory {inside.relative_to(tree)}."
                raise UsageError(message, "Name a revision that has it, or another command.")
            variables = {"PYTHONPATH": path} if (path := _moved(os.environ.get("PYTHONPATH", ""), root, tree)) else {}
            yield ProgramInTurns(_in_tree(command, root, tree), inside, against, commit[:9], variables), mine
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _in_tree(command: str, root: Path, tree: Path) -> str:
    """Return a command with the absolute paths of files that the revision has moved to its tree.

    Others, as of an interpreter that git does not know, stay.
    """

    def moved(path: re.Match[str]) -> str:
        return str(tree / path[1]) if (tree / path[1]).exists() else path[0]

    return re.sub(rf"{re.escape(str(root))}/([^\s'\";|&()<>:=]+)", moved, command)


def _moved(paths: str, root: Path, tree: Path) -> str:
    """Return search paths with those of the repository moved to the tree of the revision."""
    moved = []
    for path in filter(None, paths.split(os.pathsep)):
        absolute = Path(path).resolve()
        moved.append(
            str(tree / absolute.relative_to(root.resolve())) if absolute.is_relative_to(root.resolve()) else path
        )
    return os.pathsep.join(moved)


def _git(directory: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, or is not installed."""
    if (git := shutil.which("git")) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - git, with arguments that name a revision and our own directory
            [git, *arguments], cwd=directory, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _refuse_what_is_no_command(text: str, directory: Path) -> None:
    try:
        words = [word for word in shlex.split(text) if "=" not in word]
    except ValueError:
        words = []
    if not words or (shutil.which(words[0]) is None and not (directory / words[0]).exists()):
        message = f"{text!r} is neither a revision of git here nor a command."
        raise UsageError(message, "Write --against main, or --against 'python other.py'.")
