"""What the contract suite has to know of a framework: a program that trains with it, and what its recording holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Those that are installed here.
NAMES = [name for name in ("torch", "mindspore", "paddle", "jax") if find_spec(name)]

#: The line of a program that stands for what a test does just before the loop.
BEGIN = "# the loop begins"


@dataclass(frozen=True)
class Framework:
    """A framework, its program, and its words.

    Attributes:
        name: The module that a program imports, which is also the name of the collector.
        title: What stepscope calls it.
        program: Trains twelve steps; prints one line, at its end; has the comment `BEGIN` before its loop, and appends
            the time at which each step ended, in ns, to the list ``stamps``.
        found: What the manifest says of the steps of this program.
        updates: Path of a run → how many updates of the parameters are in its recording.
        operators: Words of which one stands in the printed summary.
        advice: What a program gets to read that imports the framework and makes no step.
        arguments: Arguments of the program.
        alone: Arguments with which it has no children, if others: children of a killed program keep its output open.
        options: Options of ``stepscope run`` for the program.
        recompiles: A program of ten steps, the last four of which have 12 rows in a batch and not 16, and which
            compiles its function ``compute`` for each.
        two: The beginning of a program with functions ``first`` and ``second``, each of which updates other parameters.
        idle: A program that makes no step, and what it prints.
        shown: A program whose results are looked at, if not `program`.
        summary: Further words of the summary.
        statistic: A word in ``op_statistic.csv``.
        check: Path of a run of `program` → holds what is the framework's own.
        in_flight: How many updates of before a window may still run in it.
    """

    name: str
    title: str
    program: str
    found: Mapping[str, Any]
    updates: Callable[[Path], int]
    operators: tuple[str, ...]
    advice: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    alone: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()
    recompiles: str = ""
    two: str = ""
    idle: tuple[str, str] | None = None
    shown: str | None = None
    summary: tuple[str, ...] = ()
    statistic: str = ""
    check: Callable[[Path], None] = field(default=lambda run: None)
    in_flight: int = 0

    def doing(self, what: str, after: int) -> str:
        """Return the program that does ``what`` when it has made so many steps, before it notes the last one."""
        line = next(line for line in self.program.splitlines() if line.lstrip().startswith("stamps.append"))
        indent = line[: len(line) - len(line.lstrip())]
        return self.program.replace(line, f"{indent}if len(stamps) == {after}: {what}\n{line}")


def framework_of(name: str) -> Framework:
    """Return what is known of a framework."""
    found: Framework = import_module(f"tests.frameworks.{name}.framework").FRAMEWORK
    return found
