"""Running a script, a module or code as ``__main__`` in this process, as ``python`` itself does."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import os
import signal
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from stepscope.errors import UsageError

#: Earlier `__main__` modules. They stay alive because their functions are still running.
_former: list[ModuleType] = []


@dataclass(frozen=True)
class ProgramToRun:
    """A program, as the command line names it.

    Attributes:
        kind: ``script`` (a file, or a directory or zip file with a ``__main__.py``), ``module`` or ``code``.
        target: The path, the module's name, or the code.
        arguments: Arguments of the program, without its name.
    """

    kind: str
    target: str
    arguments: Sequence[str] = ()

    def check(self) -> None:
        """Raise ``UsageError`` if the script does not exist; modules are looked up when they run."""
        if self.kind == "script" and not Path(self.target).exists():
            message = f"The script {self.target} does not exist."
            raise UsageError(message, "Write: stepscope run [options] script.py [arguments], or -m module.")

    @property
    def name(self) -> str:
        """The name that runs of this program get."""
        if self.kind == "module":
            return self.target.removesuffix(".__main__").rpartition(".")[2]
        return "code" if self.kind == "code" else Path(self.target).stem


def run(program: ProgramToRun) -> BaseException | None:
    """Run ``program`` as ``__main__``, with ``sys.argv`` and ``sys.path`` as under ``python``.

    Returns:
        The exception that ended the program, ``SystemExit`` included; its traceback shows the program's frames only.

    Raises:
        UsageError: The module or the directory's ``__main__.py`` does not exist.
    """
    main = _new_main()
    find = {"script": _find_script, "module": _find_module, "code": _find_code}[program.kind]
    try:
        code = find(main, program)
    except UsageError:
        raise
    except BaseException as error:  # noqa: BLE001 - a syntax error, or what a package raises; the caller reports it
        return error.with_traceback(_own_frames(error.__traceback__))
    try:
        exec(code, vars(main))  # noqa: S102 - running the program is the purpose
    except BaseException as error:  # noqa: BLE001 - it is the program's; the caller reports it as Python does
        return error.with_traceback(_own_frames(error.__traceback__))
    return None


def _new_main() -> ModuleType:
    """Return a new module, which replaces ``__main__``; the old one stays alive in ``_former``."""
    main = ModuleType("__main__")
    _former.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    vars(main).update(__builtins__=builtins, __annotations__={}, __cached__=None)
    return main


def _find_script(main: ModuleType, program: ProgramToRun) -> CodeType:
    path = Path(program.target)
    absolute = os.path.abspath(path)  # noqa: PTH100 - keeps links, as Python does
    sys.argv = [program.target, *program.arguments]
    if path.is_dir() or zipfile.is_zipfile(path):
        _first_on_path(absolute)
        spec = PathFinder.find_spec("__main__", [absolute])
        if spec is None:
            message = f"{program.target} has no __main__.py."
            raise UsageError(message, "Name the script itself.")
        return _describe(main, spec)
    _first_on_path(str(path.resolve().parent))
    loader = SourceFileLoader("__main__", absolute)
    vars(main).update(__file__=absolute, __loader__=loader, __package__=None)
    return compile(loader.get_data(absolute), absolute, "exec", dont_inherit=True)


def _find_module(main: ModuleType, program: ProgramToRun) -> CodeType:
    sys.argv = ["-m", *program.arguments]
    _first_on_path(str(Path.cwd()))
    spec = _module_spec(program.target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _module_spec(f"{program.target}.__main__")
    if spec is None:
        message = f"The module {program.target} cannot be found."
        raise UsageError(message, "Check its spelling and the current directory.")
    sys.argv[0] = spec.origin or program.target
    return _describe(main, spec)


def _find_code(main: ModuleType, program: ProgramToRun) -> CodeType:
    sys.argv = ["-c", *program.arguments]
    _first_on_path("")
    vars(main).update(__loader__=BuiltinImporter, __package__=None)
    return compile(program.target, "<string>", "exec", dont_inherit=True)


def _module_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _describe(main: ModuleType, spec: ModuleSpec) -> CodeType:
    """Set the attributes of ``__main__`` that the import system defines, and return its code."""
    code: CodeType | None = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    if code is None:
        message = f"{spec.origin or spec.name} has no Python code."
        raise UsageError(message, "Only Python programs can be profiled.")
    vars(main).update(
        __file__=spec.origin,
        __spec__=spec,
        __loader__=spec.loader,
        __package__=spec.parent,
        __cached__=spec.cached,
    )
    return code


def _first_on_path(entry: str) -> None:
    """Replace the directory of the ``stepscope`` command, first on the path, by that of the program."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [entry]


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this file; the rest is what ``python`` shows."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def report_failure(error: BaseException) -> int:
    """Report an uncaught exception of the program as the interpreter does, and return the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:  # noqa: BLE001 - the program's own hook failed: Python then shows both
        broken.__traceback__ = _own_frames(broken.__traceback__)
        _show("Error in sys.excepthook:\n", broken)
        _show("\nOriginal exception was:\n", error)
    return 1


def _show(heading: str, error: BaseException) -> None:
    if sys.stderr is not None:
        sys.stderr.write(heading)
    sys.__excepthook__(type(error), error, error.__traceback__)


def keep_standard_streams() -> None:
    """Open the null device for every closed standard stream: else a file of ours gets its number and its output."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:  # open returns the lowest free number: that of a standard stream while one is closed
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def die_of_interrupt() -> None:
    """End by the signal, as Python does after an uncaught KeyboardInterrupt, so that a shell stops its loop, too."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
