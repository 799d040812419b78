"""Run a training script, unchanged, and record some of its steps.

The script runs to its own end, with its own output and exit code. Steps are found by its optimizers. Afterwards the
summary of the recorded steps goes to standard error; standard output belongs to the script.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.options import ALL_STEPS, Door, check_given, flags_of, make_options, options_at
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.session import background
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import sessions_begun
from stepscope.collect.session.window import Settings
from stepscope.collect.start import program
from stepscope.collect.start.automatic import Automatic, Selection
from stepscope.collect.start.environment import hide_from_mindspore
from stepscope.collect.start.profile import absolute
from stepscope.collect.start.stand_in import StandIn
from stepscope.compat.stand_ins import PACKAGES
from stepscope.errors import UsageError
from stepscope.trace.run_directory import check_writable

HELP = "run a training script and record some of its steps"
EPILOG = """\
examples:
  stepscope run train.py --epochs 3              steps 5 to 9 of train.py
  stepscope run --steps 100:104 -m project.train   a module, steps 100 to 104
  torchrun --nproc-per-node 2 -m stepscope run train.py
  msrun --worker_num 2 --local_worker_num 2 python -m stepscope run train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    parser.epilog, parser.formatter_class, parser.allow_abbrev = EPILOG, argparse.RawDescriptionHelpFormatter, False
    parser.usage = "stepscope run [options] (script | -m module | -c code) [arguments]"
    for name, option in options_at(Door.RUN).items():
        flags, text = flags_of(option), option.help.replace("`", "")
        if option.kind is bool:
            text = f"record {text} ({'on' if option.default else 'off'})"
            parser.add_argument(*flags, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            text += "" if option.kind is Path or "|" in option.metavar else f": {option.expectation}"
            text += "" if option.default in (None, ()) else f" ({option.default})"
            parser.add_argument(*flags, dest=name, type=option.parse, metavar=option.metavar, help=text)
    parser.add_argument("--all", action="store_true", help="turn on all options of the form --NAME, --no-NAME")
    parser.add_argument(
        "--later", dest="analyse", action="store_const", const="later", help="the same as --analyse later"
    )
    parser.add_argument(
        "--as",
        dest="stand_in",
        choices=sorted(PACKAGES),
        metavar="NAME",
        help=f"let the script's own calls of this package's profiler say what is recorded ({', '.join(PACKAGES)})",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a module")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, metavar="code", help="run code")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script and its arguments")


def execute(arguments: argparse.Namespace) -> int:
    """Run the program and return its exit code; the report follows after the program's own atexit functions."""
    target = _program(arguments)
    target.check()
    program.keep_standard_streams()
    values = option_values(arguments)
    output = absolute(Path(values["output"]))
    if arguments.stand_in is None:
        check_writable(output)
    ending = _Ending(quiet=arguments.quiet, analyse=values["analyse"])
    # Python runs these in reverse: after the program's threads and its own atexit functions, the report; then the end.
    atexit.register(ending.die)
    atexit.register(ending.finish)
    memory_by_default = arguments.profile_memory is None and not arguments.all
    options = make_options(values, memory_by_default=memory_by_default)
    selection = Selection.of(values)
    hide_from_mindspore()
    if arguments.stand_in is not None:
        ending.stand_in = StandIn(arguments.stand_in, PACKAGES[arguments.stand_in], ending.stand_in_failed)
        ending.stand_in.install()
    else:
        ending.automatic = Automatic(
            lambda describe: Settings(options, output, target.name, selection.describe(), describe), selection
        )
        ending.automatic.install()
    try:
        error = program.run(target)
    except UsageError:
        ending.automatic = ending.stand_in = None  # there was no program
        raise
    return 0 if error is None else ending.fail(error)


class _Ending:
    """What remains to be done when the program has ended."""

    def __init__(self, *, quiet: bool, analyse: str) -> None:
        self.automatic: Automatic | None = None
        self.stand_in: StandIn | None = None
        self._analyse = analyse
        self._quiet = quiet
        self._process = os.getpid()
        self._interrupted = False

    def fail(self, error: BaseException) -> int:
        """Close the recording after the program raised ``error``, and do what Python does then."""
        self._interrupted = isinstance(error, KeyboardInterrupt)
        wrong = not isinstance(error, SystemExit) or error.code not in (None, 0)
        if wrong and self.automatic is not None and os.getpid() == self._process:
            try:
                self.automatic.end(f"failed at step {self.automatic.steps}", {"exception": type(error).__name__})
            except KeyboardInterrupt:  # a second Ctrl-C ends the closing; blocks that are written stay readable
                self._interrupted = True
        if isinstance(error, SystemExit):
            raise error
        return program.report_failure(error)

    def finish(self) -> None:
        """Close the recording, compute the results, print the summary and what to type next."""
        if os.getpid() != self._process:
            return
        if self.stand_in is not None:
            self._finish_stand_in(self.stand_in)
        if self.automatic is None:
            return
        self.automatic.end()
        speak = not self._quiet and find_job_rank().rank == 0
        recorded = self.automatic.recorded
        if recorded is not None:
            self._report(recorded, speak=speak)
        elif speak:
            _say(_nothing_recorded(self.automatic))

    def _report(self, recorded: RecordedWindow, *, speak: bool) -> None:
        """Compute the results of this rank when ``--analyse`` says; the first rank shows them or the next command."""
        recorded.wait()
        for name, state in recorded.manifest["collectors"].items():
            if "failed" in state:
                _say(f"Not recorded: {name}: {state['failed']}.")
        try:
            if self._analyse == "now":
                background.run_report(recorded.rank_path, *([] if speak else ["--quiet"]))
                return
            if self._analyse == "background":
                background.start_analysis(recorded.rank_path)
        except OSError as error:
            _say(f"The results were not computed: {error}.")
        if speak:
            _say(f"Recorded. Next: stepscope report {shlex.quote(str(recorded.path))}")

    def stand_in_failed(self, error: Exception) -> None:
        """Say that the package's names could not be replaced."""
        _say(f"--as: the script keeps its own profiler ({type(error).__name__}: {error}).")

    def _finish_stand_in(self, stand_in: StandIn) -> None:
        """Put the package's names back; warn if the script has not used its profiler."""
        stand_in.remove()
        if not sessions_begun() and not self._quiet and find_job_rank().rank == 0:
            _say(
                f"Nothing was recorded: the script started no profiler of {stand_in.name}. Run it without --as, and "
                "stepscope finds its steps itself."
            )

    def die(self) -> None:
        """End by the signal if the program ended with a KeyboardInterrupt."""
        if self._interrupted:
            program.die_of_interrupt()


def _nothing_recorded(automatic: Automatic) -> str:
    """Return why nothing was recorded, and how to record."""
    if automatic.problem is not None:
        return f"Nothing was recorded: {automatic.problem}."
    if automatic.gave_way:
        return "The program profiles itself with stepscope.profile; `stepscope run` left that to it."
    if not automatic.frameworks:
        return f"Nothing was recorded: the program did not import {' or '.join(FRAMEWORKS)}."
    if automatic.steps:
        return (
            f"Nothing was recorded: the program ended after {automatic.steps} training steps, before the first one to "
            "record. Use a smaller --skip, such as --skip 1."
        )
    launched = next(framework.launched for name, framework in FRAMEWORKS.items() if name in automatic.frameworks)
    return (
        "Nothing was recorded: no optimizer stepped in this process, so no training step was found. Record the whole "
        "program as one step with --steps all, or mark steps in the script: `with stepscope.profile() as prof:` and "
        f"prof.step(). Processes that the script starts are not recorded; use `{launched}` for them."
    )


def _say(text: str) -> None:
    """Write to standard error, which the program may have closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"stepscope: {text}\n")
        sys.stderr.flush()


def _program(arguments: argparse.Namespace) -> program.ProgramToRun:
    """Return what to run; everything after it on the command line belongs to it."""
    for kind, words in (("module", arguments.module), ("code", arguments.code), ("script", arguments.script)):
        if words is None:
            continue
        if kind == "script" and words[:1] == ["--"]:
            words = words[1:]
        if words:
            return program.ProgramToRun(kind, words[0], tuple(words[1:]))
    message = "The command line names no program."
    raise UsageError(message, "Write: stepscope run [options] script.py [arguments], or -m module, or -c code.")


def option_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options, by name.

    Raises:
        UsageError: An option cannot have the value given, or ``--steps`` comes with ``--skip`` or ``--active``.
    """
    options = options_at(Door.RUN)
    given = {name: value for name in options if (value := getattr(arguments, name)) is not None}
    if arguments.all:
        given = {**{name: True for name, option in options.items() if option.kind is bool}, **given}
    if "steps" in given and given.keys() & {"skip", "active"}:
        message = "--steps names the same steps as --skip and --active."
        raise UsageError(message, "Use --steps alone, or the other two.")
    values = check_given(Door.RUN, given)
    return {**values, "skip": 0, "active": None} if values["steps"] == ALL_STEPS else values
