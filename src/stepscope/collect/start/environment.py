"""Recording a program by an environment variable alone: the program and its launch stay as they are.

``stepscope.pth`` lies beside the installed package. Python runs its one line when it starts, and that line calls
:func:`begin` if one of the variables is set. Nothing else happens until the program imports a framework: a process that
imports none (another Python of the shell, a resource tracker) reads no options, prints nothing and makes no directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.hooks.post_import import when_imported

if TYPE_CHECKING:
    from stepscope.collect.session.window import Settings
    from stepscope.collect.start.automatic import Automatic

OURS = "STEPSCOPE_OPTIONS"
MINDSPORES = "MS_PROFILER_OPTIONS"
#: The variable of a program that takes turns with another (:mod:`stepscope.collect.start.turns`).
TURNS = "STEPSCOPE_TURNS"
#: ``0`` switches the hook off.
STARTUP = "STEPSCOPE_STARTUP"

#: The directory of runs of each variable; MindSpore's documents promise theirs.
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

#: Interpreter options that are followed by a value.
_VALUED = frozenset("WX")


class ProcessRole(Enum):
    """What a process does for a training, as its command line shows."""

    PROGRAM = "program"
    HELPER = "helper"
    UNSURE = "unsure"  # a child of multiprocessing: a rank that trains, or a worker that loads data


def role_of(command: Sequence[str]) -> ProcessRole:
    """Return the role of the process of this command line (``sys.orig_argv``)."""
    kind, target = _target(command)
    if kind == "-c" and target.startswith("from multiprocessing"):
        return ProcessRole.UNSURE if "spawn_main" in target or "forkserver" in target else ProcessRole.HELPER
    if kind == "-m" and any(f"{target}.".startswith(f"{name}.") for name in _LAUNCHERS):
        return ProcessRole.HELPER
    path = Path(target)
    if kind == "script" and (path.name in _LAUNCHER_SCRIPTS or "_inductor" in path.parts):
        return ProcessRole.HELPER
    return ProcessRole.PROGRAM


def _target(command: Sequence[str]) -> tuple[str, str]:
    """Return ``-c``, ``-m`` or ``script``, and the code, module or path, as ``python`` reads its command line."""
    words = iter(command[1:])
    for word in words:
        if word in ("-", "--") or not word.startswith("-"):
            return "script", word
        if word.startswith("--"):
            next(words, "")  # --check-hash-based-pycs mode
            continue
        for end, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                return f"-{letter}", word[end:] or next(words, "")
            if letter in _VALUED:
                if not word[end:]:
                    next(words, "")
                break
    return "script", ""


_current: EnvironmentRecording | None = None


def begin() -> None:
    """Wait for the program to import a framework, if a variable asks for a recording.

    Python calls it when it starts; a program that sets the variable itself may call it again.
    """
    global _current
    variable = next((name for name in (OURS, MINDSPORES) if os.environ.get(name)), None)
    if variable is None or os.environ.get(STARTUP) == "0" or _current is not None:
        return
    hide_from_mindspore()  # a launcher imports it, too
    role = role_of(getattr(sys, "orig_argv", []))
    if os.environ.get(TURNS):
        from stepscope.collect.start import turns

        if role is not ProcessRole.HELPER:
            turns.begin()
        return
    roles = [framework.not_training for framework in FRAMEWORKS.values()]
    if role is not ProcessRole.HELPER and not any(os.environ.get(variable) in values for variable, values in roles):
        _current = EnvironmentRecording(variable, role)
        _current.install()


def current() -> EnvironmentRecording | None:
    """Return the recording that the environment asks for in this process, if any."""
    return _current


class EnvironmentRecording:
    """The recording that a variable of the environment asks for, in this process."""

    def __init__(self, variable: str, role: ProcessRole) -> None:
        self.variable = self.door = variable
        self.automatic: Automatic | None = None
        self._text = os.environ[variable]
        self._role = role
        self._process = os.getpid()
        self._withdraw: list[Callable[[], None]] = []
        self._waiting = True
        self._analyse, self._quiet = "now", False
        self._written: Mapping[str, str] = {}
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
            self._process, self._role = os.getpid(), ProcessRole.UNSURE
        values = self._read()
        if values is None or not (values["start"] and values["start_profile"]):
            return
        self._analyse, self._quiet = values["analyse"], values["quiet"]
        self.automatic = self._make_automatic(values)
        # Registered after the framework's own functions: Python runs these in reverse, so the framework is still alive.
        atexit.register(self.finish)
        if (processes := sys.modules.get("multiprocessing.util")) is not None and self._role is ProcessRole.UNSURE:
            processes.Finalize(None, self.finish, exitpriority=0)  # a forked child skips the functions of atexit
        self.automatic.install()

    def _read(self) -> dict[str, Any] | None:
        """Return the variable's values by name; None if it is not a JSON object."""
        from stepscope.collect.start.json_options import environment_keys, read_options

        try:
            reading = read_options(self._text, environment_keys(DEFAULT_OUTPUTS[self.variable]))
        except ValueError as error:
            self._say(f"{self.variable} is not JSON ({error}); nothing is recorded, the program runs on.")
            return None
        for warning in reading.warnings:
            self._say(f"{self.variable}: {warning}.")
        self._written = reading.written
        return reading.values

    def _make_automatic(self, values: dict[str, Any]) -> Automatic:
        from stepscope.collect.session.window import Settings
        from stepscope.collect.start.automatic import Automatic, Selection
        from stepscope.collect.start.json_options import options_of, unavailable
        from stepscope.collect.start.profile import absolute, program_name

        output = absolute(Path(values["output"]))
        # A spawned process has its parent's arguments before it has its main module.
        worker = program_name(Path(sys.argv[0]).stem if "".join(sys.argv[:1]).endswith(".py") else "python")
        options = options_of(values)
        # Two steps show that a process trains: a worker that loads data takes none, and so is never recorded.
        skip = 2 if self._role is ProcessRole.UNSURE else 0
        selection = Selection.of(values, find=True, least_skip=skip)
        missing = unavailable(values, self._written)
        for name, reason in missing.items():
            self._say(f"{self.variable}: {name} records nothing here: {reason}. Everything else is recorded.")
        notes: dict[str, object] = {"switches_unavailable": missing} if missing else {}
        if self._role is ProcessRole.UNSURE:
            notes["parent_process"] = os.getppid()

        def settings(describe: Callable[[], dict[str, Any]]) -> Settings:
            return Settings(options, output, worker, selection.describe(), describe, notes, self.door)

        return Automatic(settings, selection, trains=self._role is ProcessRole.PROGRAM)

    def finish(self) -> None:
        """Close the recording and compute its results; nothing goes to standard output. Runs once."""
        from stepscope.collect.session.window import ending

        automatic = self.automatic
        if automatic is None or self._done or os.getpid() != self._process:
            return
        self._done = True
        error = getattr(sys, "last_value", None)
        if error is None:
            automatic.end()
        else:
            automatic.end(*ending(automatic.reached, error))
        self._report(automatic)

    def _report(self, automatic: Automatic) -> None:
        from stepscope.collect.session.background import start_analysis
        from stepscope.collect.session.other_ranks import show_results

        recorded = automatic.recorded
        if recorded is None:
            ended = f"the program ended in step {automatic.steps}, before the first one to record; use a smaller `skip`"
            why = ended if automatic.steps else "no training step was found in this process"
            self._say(f"nothing was recorded: {automatic.problem or why}.")
            return
        recorded.wait()
        if not recorded.rank_path.is_dir():
            self._say("no results: the run was removed while the program ran.")
            return
        speak = self._speaks() and not self._quiet
        try:
            if self._analyse == "now":
                with suppress(KeyboardInterrupt):  # it ends the wait, and what is recorded stays
                    show_results(recorded.rank_path, recorded.manifest["world_size"], speak=speak)
            elif self._analyse == "background":
                start_analysis(recorded.rank_path)
        except OSError as error:
            self._say(f"the results were not computed: {error}.")
        if speak:
            self._say(f"recorded in {recorded.path}")

    def _speaks(self) -> bool:
        """Whether this process is the program's, and its job's first rank."""
        from stepscope.collect.ranks import find_job_rank

        return find_job_rank().rank == 0 and self._role is ProcessRole.PROGRAM

    def _say(self, text: str) -> None:
        """Write a line to standard error, for the first rank only."""
        if self._speaks():
            from stepscope.collect.error_stream import say

            say(text)


def hide_from_mindspore() -> None:
    """Hide MindSpore's variable from MindSpore while it is imported: stepscope records this program."""
    if MINDSPORES in os.environ:
        when_imported("mindspore", lambda: None, _hidden)


@contextmanager
def _hidden() -> Iterator[None]:
    """Remove MindSpore's variable while MindSpore is imported: one profiler runs, not two. Children still see it."""
    text = os.environ.pop(MINDSPORES, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[MINDSPORES] = text
