"""stepscope in a notebook: ``%load_ext stepscope``, then ``%%stepscope`` above a cell.

::

    %%stepscope --no-shapes
    train(epochs=1)

    %%stepscope prof
    for batch in batches:
        work(batch)
        prof.step()

    %stepscope compare
"""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

from stepscope.collect.error_stream import say
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.start.flag_options import add_flags, option_values
from stepscope.collect.start.profile import profile
from stepscope.comparison.comparison import Comparison, compare, remember
from stepscope.errors import StepscopeError, UsageError
from stepscope.integrations.notebook_cell import CellRecording
from stepscope.run import Run

_MAGIC = "stepscope"


def load(shell: Any) -> None:  # noqa: ANN401 - IPython's InteractiveShell
    """Make ``%%stepscope`` and ``%stepscope`` known to a shell of IPython."""
    magics = NotebookMagics(shell)
    shell.register_magic_function(magics.cell, "cell", _MAGIC)
    shell.register_magic_function(magics.line, "line", _MAGIC)


class _LineParser(argparse.ArgumentParser):
    """Parses what follows a magic; a mistake is an error of the cell, and does not end the kernel."""

    def error(self, message: str) -> NoReturn:
        said = f"{self.prog}: {message}."
        raise UsageError(said, f"{self.prog} --help lists what can be said.")


class NotebookMagics:
    """``%%stepscope`` and ``%stepscope`` of one notebook.

    Args:
        shell: The shell of IPython that runs its cells.

    Attributes:
        runs: What its cells recorded, in order.
    """

    def __init__(self, shell: Any) -> None:  # noqa: ANN401 - IPython's InteractiveShell
        self.runs: list[RecordedWindow] = []
        self._shell = shell

    def cell(self, line: str, cell: str) -> Run | None:
        """Record this cell, and show where its time goes: %%stepscope [options] [NAME].

        The options are those of `stepscope run`; all of the cell is recorded unless --steps, --skip or --active select
        some of its steps. Steps are found by the optimizers; without one the cell is one step. With a NAME, the cell
        says itself where a step ends: NAME.step(). Afterwards NAME shows the run, and NAME.run is it.
        """
        __tracebackhide__ = True
        parser = _LineParser(prog=f"%%{_MAGIC}", add_help=False, allow_abbrev=False)
        parser.add_argument("name", nargs="?", metavar="NAME", help="how the cell calls its profile: NAME.step()")
        add_flags(parser)
        parser.add_argument("--help", action="store_true", help="show this, and run nothing")
        try:
            arguments = parser.parse_args(shlex.split(line))
            if arguments.help:
                sys.stdout.write(parser.format_help())
                return None
            recording = self._recording(arguments)
            code = self._compiled(cell)
            recording.begin()
        except (StepscopeError, ValueError) as error:
            raise _shown_in_one_line(error) from None
        return self._recorded(recording, code)

    def _recording(self, arguments: argparse.Namespace) -> CellRecording:
        if arguments.steps is None and arguments.skip is None and arguments.active is None:
            arguments.steps = "all"
        name = arguments.name
        if name is not None and not name.isidentifier():
            message = f"%%{_MAGIC}: {name!r} is not a name."
            raise UsageError(message, f"Write %%{_MAGIC} prof, and prof.step() in the cell.")
        recording = CellRecording(option_values(arguments), declares=name is not None)
        if name is not None:
            self._shell.user_ns[name] = recording
        return recording

    def _compiled(self, cell: str) -> list[CodeType]:
        """Return the cell as IPython compiles one; the value of the last expression is shown, unless ``;`` ends it."""
        compiler = self._shell.compile
        source = self._shell.transform_cell(cell)
        number = len(self._shell.user_ns.get("In", "")) - 1  # `execution_count` may be the next one's already
        name = compiler.cache(source, number, raw_code=cell)
        body = self._shell.transform_ast(compiler.ast_parse(source, filename=name)).body
        shown = body[-1:] if body and isinstance(body[-1], ast.Expr) and not cell.rstrip().endswith(";") else []
        parts = [(ast.Module(body[: len(body) - len(shown)], []), "exec"), (ast.Interactive(shown), "single")]
        return [compiler(part, name, mode) for part, mode in parts]

    def _recorded(self, recording: CellRecording, code: list[CodeType]) -> Run | None:
        __tracebackhide__ = True  # by IPython: a traceback begins in the cell
        try:
            for part in code:
                exec(part, self._shell.user_global_ns, self._shell.user_ns)  # noqa: S102 - the user's cell
        except BaseException as error:
            self._end(recording, error)
            raise
        return self._end(recording)

    def _end(self, recording: CellRecording, error: BaseException | None = None) -> Run | None:
        recording.end(error)
        recorded = recording.recorded
        if recorded is not None:
            self.runs.append(recorded)
            if recording.analyse != "now" or error is not None:
                say(f"recorded in {recorded.path}")
                return None
        try:
            return recording.run
        except StepscopeError as nothing:
            say(str(nothing))
            return None

    def line(self, line: str) -> Comparison | None:
        """Compare two runs: %stepscope compare [A B].

        By default the last two that cells of this notebook recorded. A and B are runs, the names of what cells
        recorded, or paths of runs, directories of runs, and captures.
        """
        parser = _LineParser(prog=f"%{_MAGIC}", add_help=False, allow_abbrev=False, description=self.line.__doc__)
        parser.add_argument("verb", choices=["compare"], help="the only one; cells are recorded by %%%%stepscope")
        parser.add_argument("a", nargs="?", metavar="A", help="what was there before")
        parser.add_argument("b", nargs="?", metavar="B", help="what came after")
        parser.add_argument("--rank", type=int, metavar="N", help="rank of jobs to compare")
        try:
            arguments = parser.parse_args(shlex.split(line))
            found = compare(*self._sides(arguments), rank=arguments.rank)
        except (StepscopeError, ValueError) as error:
            raise _shown_in_one_line(error) from None
        remember(found)
        return found

    def _sides(self, arguments: argparse.Namespace) -> tuple[str | Path | Run, str | Path | Run]:
        if arguments.b is not None:
            return self._named(arguments.a), self._named(arguments.b)
        if arguments.a is not None or len(self.runs) < 2:
            message = f"%{_MAGIC} compare: cells of this notebook recorded {len(self.runs)} runs since it was started."
            raise UsageError(message, f"Name two: %{_MAGIC} compare RUN NEW.")
        return self.runs[-2].path, self.runs[-1].path

    def _named(self, name: str) -> str | Path | Run:
        """Return the run that a variable of the notebook holds, else the path."""
        value = self._shell.user_ns.get(name, name)
        if isinstance(value, profile) and value.recorded:
            value = value.recorded[-1]
        if isinstance(value, RecordedWindow | CellRecording):
            return value.open() if isinstance(value, RecordedWindow) else value.run
        return value if isinstance(value, Run | Path) else name


def _shown_in_one_line(error: Exception) -> Exception:
    """Return the error that IPython shows without a traceback."""
    from IPython.core.error import UsageError as OneLine

    shown: Exception = OneLine(f"stepscope: {error}")
    return shown
