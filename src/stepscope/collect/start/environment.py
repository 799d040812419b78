"""Recording a program by an environment variable alone: the program and its launch stay as they are.

``stepscope.pth`` lies beside the installed package; Python runs its one line when it starts, and that line calls
:func:`begin` where one of the variables is set. Nothing else happens until the program imports a framework: a process
that never does (the shell's other Pythons, resource trackers) reads no options, says nothing and makes no directory.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.hooks.post_import import when_imported

if TYPE_CHECKING:
    from stepscope.collect.session.window import Settings
    from stepscope.collect.start.automatic import Automatic, Selection
    from stepscope.collect.start.switches import Reading

OURS = "STEPSCOPE_OPTIONS"
MINDSPORES = "MS_PROFILER_OPTIONS"
#: ``0`` switches the hook off.
STARTUP = "STEPSCOPE_STARTUP"

#: Where results go when ``output_path`` is not set: MindSpore's documents promise theirs.
DEFAULT_OUTPUTS = {OURS: "stepscope-runs", MINDSPORES: "data"}

#: Modules (``python -m``) and scripts that start the processes that train, or have nothing to do with training.
_LAUNCHERS = (
    *(module for framework in FRAMEWORKS.values() for module in framework.launcher_modules),
    *("accelerate", "deepspeed", "pip", "venv", "ensurepip", "stepscope"),
)
_LAUNCHER_SCRIPTS = (
    *(script for framework in FRAMEWORKS.values() for script in framework.launcher_scripts),
    *("accelerate", "deepspeed", "pip", "pip3", "stepscope"),
)
_STEPS = re.compile(r"(\d+):(\d+)")

#: Interpreter options that are followed by a value.
_VALUED = frozenset("WX")


class Part(Enum):
    """What a process may be to a training, as far as its command line tells."""

    PROGRAM = "program"
    HELPER = "helper"
    UNSURE = "unsure"  # a child of multiprocessing: a rank that trains, or a worker that loads data


def part_of(command: Sequence[str]) -> Part:
    """Return what the process of this command line (``sys.orig_argv``) is."""
    kind, target = _target(command)
    if kind == "-c" and target.startswith("from multiprocessing"):
        return Part.UNSURE if "spawn_main" in target or "forkserver" in target else Part.HELPER
    if kind == "-m" and any(f"{target}.".startswith(f"{name}.") for name in _LAUNCHERS):
        return Part.HELPER
    path = Path(target)
    if kind == "script" and (path.name in _LAUNCHER_SCRIPTS or "_inductor" in path.parts):
        return Part.HELPER
    return Part.PROGRAM


def _target(command: Sequence[str]) -> tuple[str, str]:
    """Return ``-c``, ``-m`` or ``script``, and the code, module or path, as ``python`` reads its command line."""
    words = iter(command[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            return "script", word
        if word.startswith("--"):
            next(words, "")  # --check-hash-based-pycs mode
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                return f"-{letter}", word[place:] or next(words, "")
            if letter in _VALUED:
                if not word[place:]:
                    next(words, "")
                break
    return "script", ""


_current: Environment | None = None


def begin() -> None:
    """Wait for the program to import a framework, where a variable asks for it. Called when Python starts."""
    global _current
    variable = next((name for name in (OURS, MINDSPORES) if os.environ.get(name)), None)
    if variable is None or os.environ.get(STARTUP) == "0" or _current is not None:
        return
    hide_from_mindspore()  # a launcher imports it, too
    part = part_of(getattr(sys, "orig_argv", []))
    roles = [framework.not_training for framework in FRAMEWORKS.values()]
    if part is not Part.HELPER and not any(os.environ.get(variable) in values for variable, values in roles):
        _current = Environment(variable, part)
        _current.install()


def current() -> Environment | None:
    """Return what the environment asked for in this process, if anything."""
    return _current


class Environment:
    """What a variable of the environment asks for, in this process.

    Args:
        variable: Its name.
        part: What this process is.
    """

    def __init__(self, variable: str, part: Part) -> None:
        self.variable = variable
        self.automatic: Automatic | None = None
        self._text = os.environ[variable]
        self._part = part
        self._process = os.getpid()
        self._withdraw: list[Callable[[], None]] = []
        self._waiting = True
        self._analyse = "now"
        self._done = False

    def install(self) -> None:
        """Wait for the frameworks."""
        for name in FRAMEWORKS:
            if self._waiting:
                self._withdraw.append(when_imported(name, self._arrived))

    def _arrived(self) -> None:
        """The program has imported a framework."""
        if not self._waiting:
            return
        self._waiting = False
        for withdraw in self._withdraw:
            withdraw()
        try:
            self._start()
        except Exception as error:  # noqa: BLE001 - law 1: said in one line; the program runs on
            self._say(f"nothing is recorded ({type(error).__name__}: {error}); the program runs on.")

    def _start(self) -> None:
        import atexit

        if os.getpid() != self._process:  # a fork of a process that had imported nothing yet
            self._process, self._part = os.getpid(), Part.UNSURE
        reading = self._read()
        if reading is None or not (reading.values["start"] and reading.values["start_profile"]):
            return
        self._analyse = reading.values["analyse"]
        self.automatic = self._automatic(reading)
        # After the framework's own: Python runs these in reverse, and the framework must be alive.
        atexit.register(self.finish)
        if (processes := sys.modules.get("multiprocessing.util")) is not None and self._part is Part.UNSURE:
            processes.Finalize(None, self.finish, exitpriority=0)  # forked children end without the other way
        self.automatic.install()

    def _read(self) -> Reading | None:
        """Return what the variable says; None where it is no JSON."""
        from stepscope.collect.start.switches import ENVIRONMENT, read_switches

        try:
            reading = read_switches(self._text, ENVIRONMENT)
        except ValueError as error:
            self._say(f"{self.variable} is no JSON ({error}); nothing is recorded, the program runs on.")
            return None
        for warning in reading.warnings:
            self._say(f"{self.variable}: {warning}.")
        return reading

    def _automatic(self, reading: Reading) -> Automatic:
        from stepscope.collect.session.window import Settings
        from stepscope.collect.start.automatic import Automatic
        from stepscope.collect.start.profile import absolute, program_name
        from stepscope.collect.start.switches import options_of, unavailable

        values = reading.values
        output = absolute(Path(values["output_path"] or DEFAULT_OUTPUTS[self.variable]))
        options = options_of(values)
        selection = self._selection(reading)
        missing = unavailable(reading)
        for name, reason in missing.items():
            self._say(f"{self.variable}: {name} records nothing here: {reason}. Everything else is recorded.")
        notes = {"switches_unavailable": missing} if missing else {}

        def settings(describe: Callable[[], dict[str, Any]]) -> Settings:
            return Settings(options, output, program_name(), selection.describe(), describe, notes)

        return Automatic(settings, selection)

    def _selection(self, reading: Reading) -> Selection:
        """Return the steps to record: all, as MindSpore's documents have it, or those that are named."""
        from stepscope.collect.start.automatic import Selection

        values = reading.values
        skip, active = values["skip"], values["active"]
        if (named := _STEPS.fullmatch(values["steps"])) and int(named[1]) <= int(named[2]):
            skip, active = int(named[1]), int(named[2]) - int(named[1]) + 1
        elif values["steps"] != "all":
            self._say(f'{self.variable}: \'steps\' should be "all" or "5:9"; the default "all" is used.')
        if self._part is Part.UNSURE:
            skip = max(skip, 2)  # a worker that loads data takes no steps; a rank that trains takes these two soon
        return Selection(skip, active, find=True)

    def finish(self) -> None:
        """Close the recording and have its results computed; nothing goes to standard output. Runs once."""
        automatic = self.automatic
        if automatic is None or self._done or os.getpid() != self._process:
            return
        self._done = True
        error = getattr(sys, "last_value", None)
        if error is None or isinstance(error, SystemExit):
            automatic.end()
        else:
            automatic.end(f"failed at step {automatic.steps}", {"exception": type(error).__name__})
        self._report(automatic)

    def _report(self, automatic: Automatic) -> None:
        from stepscope.collect.session import background

        recorded = automatic.recorded
        if recorded is None:
            self._say(automatic.problem or "nothing was recorded: no training step was found in this process.")
            return
        recorded.wait()
        try:
            if self._analyse == "now":
                background.run_report(recorded.rank_path, "--quiet")
            elif self._analyse == "background":
                background.start_analysis(recorded.rank_path)
        except OSError as error:
            self._say(f"The results were not computed: {error}.")
        self._say(f"recorded in {recorded.path}")

    def _say(self, text: str) -> None:
        """Write a line to standard error, for the first rank only."""
        from stepscope.collect.ranks import find_job_rank

        if find_job_rank().rank == 0 and self._part is Part.PROGRAM and sys.stderr is not None:
            sys.stderr.write(f"stepscope: {' '.join(text.split())}\n")


def hide_from_mindspore() -> None:
    """Have MindSpore not find its variable when it is imported: this program is recorded by us."""
    if MINDSPORES in os.environ:
        when_imported("mindspore", lambda: None, _hidden)


@contextmanager
def _hidden() -> Iterator[None]:
    """Take MindSpore's variable away while MindSpore is imported: one profiler runs, not two. Children still see it."""
    text = os.environ.pop(MINDSPORES, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[MINDSPORES] = text


def begin_now() -> Environment | None:
    """Do what :func:`begin` does when Python starts, for a program that sets the variable itself; return what runs."""
    begin()
    return _current
