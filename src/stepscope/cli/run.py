"""Run a training script, unchanged, and record some of its steps.

The script runs to its own end, with its own output and exit code. Steps are found by its optimizers. Afterwards the
summary of the recorded steps goes to standard error; standard output belongs to the script.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stepscope.analyse.quantities import count_text
from stepscope.collect.error_stream import say
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.host.compilations import counts
from stepscope.collect.machine.reference_speeds import speeds_of_program
from stepscope.collect.options import make_options
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.session import background
from stepscope.collect.session.other_ranks import show_results
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import sessions_begun
from stepscope.collect.session.window import COMPLETE, Settings, ending
from stepscope.collect.start import program
from stepscope.collect.start.automatic import Automatic, Selection
from stepscope.collect.start.environment import hide_from_mindspore
from stepscope.collect.start.flag_options import add_flags, option_values
from stepscope.collect.start.profile import absolute
from stepscope.collect.start.spawned import SpawnedRanks
from stepscope.collect.start.stand_in import StandIn
from stepscope.collect.start.takes import LONGEST
from stepscope.compat.stand_ins import PACKAGES
from stepscope.errors import NotARunError, UsageError
from stepscope.trace.run_directory import check_writable

HELP = "run a training script and record some of its steps"
#: Seconds that a signal waits for the summary, so that all of the end fits into `LIMIT` of `session/signals.py`.
SUMMARY = 6.0
EPILOG = """\
examples:
  stepscope run train.py --epochs 3              typical steps of train.py
  stepscope run --steps 100:104 -m project.train   a module, steps 100 to 104
  torchrun --nproc-per-node 2 -m stepscope run train.py
  msrun --worker_num 2 --local_worker_num 2 python -m stepscope run train.py
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    parser.epilog, parser.formatter_class, parser.allow_abbrev = EPILOG, argparse.RawDescriptionHelpFormatter, False
    parser.usage = "stepscope run [options] (script | -m module | -c code) [arguments]"
    add_flags(parser)
    parser.add_argument(
        "--as",
        dest="stand_in",
        choices=sorted(PACKAGES),
        metavar="NAME",
        help=f"let the script's own calls of this package's profiler say what is recorded ({', '.join(PACKAGES)})",
    )
    parser.add_argument(
        "--html", action="store_true", help="write one page with everything in it, report.html among the results"
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
    report = ["--html"] if arguments.html else []
    if values["metrics"] is not None:
        report += ["--metrics", str(absolute(Path(values["metrics"])))]
    ending = _Ending(quiet=arguments.quiet, analyse=values["analyse"], report=report)
    # Python runs these in reverse: after the program's threads and its own atexit functions, the report; then the end.
    atexit.register(ending.die)
    atexit.register(ending.finish)
    memory_by_default = arguments.profile_memory is None and not arguments.all
    options = make_options(values, memory_by_default=memory_by_default)
    chosen = arguments.steps is not None or arguments.skip is not None
    selection = Selection.of(values, typical=0 if chosen else arguments.active or LONGEST)
    hide_from_mindspore()
    if arguments.stand_in is not None:
        ending.stand_in = StandIn(arguments.stand_in, PACKAGES[arguments.stand_in], ending.stand_in_failed)
        ending.stand_in.install()
    else:
        ending.automatic = Automatic(
            lambda describe: Settings(options, output, target.name, selection.describe(), describe, door="run"),
            selection,
        )
        ending.automatic.last_words = ending.terminated
        ending.automatic.install()
        ending.spawned = SpawnedRanks({**values, "output": output})
        ending.spawned.install()
    try:
        error = program.run(target)
    except UsageError:
        ending.automatic = ending.stand_in = None  # there was no program
        raise
    return 0 if error is None else ending.fail(error)


class _Ending:
    """What remains to be done when the program has ended."""

    def __init__(self, *, quiet: bool, analyse: str, report: Sequence[str]) -> None:
        self.automatic: Automatic | None = None
        self.stand_in: StandIn | None = None
        self.spawned: SpawnedRanks | None = None
        self._analyse = analyse
        self._arguments = report
        self._quiet = quiet
        self._process = os.getpid()
        self._interrupted = False

    def fail(self, error: BaseException) -> int:
        """Close the recording after the program raised ``error``, and do what Python does then."""
        self._interrupted = isinstance(error, KeyboardInterrupt)
        if self.automatic is not None and os.getpid() == self._process:
            self.automatic.hold()
            status, notes = ending(self.automatic.reached, error)
            try:
                if status != COMPLETE:
                    self.automatic.end(status, notes)
            except KeyboardInterrupt:  # a second Ctrl-C ends the closing; blocks that are written stay readable
                self._interrupted = True
        if isinstance(error, SystemExit):
            raise error
        return program.report_failure(error)

    def finish(self) -> None:
        """Close the recording, compute the results, print the summary and what to type next."""
        if os.getpid() != self._process:
            return
        try:
            self._finish()
        except NotARunError:
            say("No results: the run was removed, or another file put in its place, while the program ran.")
        except KeyboardInterrupt:  # what is recorded stays, and `stepscope report` shows it
            self._interrupted = True
            recorded = self.automatic.recorded if self.automatic is not None else None
            if recorded is not None and recorded.manifest["rank"] == 0 and not self._quiet:
                self._say_next(recorded.path)

    def _finish(self) -> None:
        if self.stand_in is not None:
            self._finish_stand_in(self.stand_in)
        if self.automatic is None:
            return
        self.automatic.hold()
        self.automatic.end()
        recorded = self.automatic.recorded
        if self.spawned is not None:
            self.spawned.remove()
        trained = recorded is not None and recorded.manifest["steps"]["recorded"] > 0
        if self.spawned is not None and not trained and (found := self.spawned.recorded()):
            self._report_spawned(found)
        elif recorded is not None:
            self._report(recorded)
        elif not self._quiet and find_job_rank().rank == 0:
            say(_nothing_recorded(self.automatic))

    def terminated(self) -> None:
        """Show the summary of a program that a signal is about to end, if it comes soon; else the next command."""
        recorded = self.automatic.recorded if self.automatic is not None else None
        if recorded is None or not recorded.wait(SUMMARY):
            return
        alone = recorded.manifest["world_size"] == 1
        try:
            if self._analyse == "now" and alone and not self._quiet:
                background.run_report(recorded.rank_path, *self._arguments, within=SUMMARY)
                return
            if self._analyse != "later":
                background.start_analysis(recorded.rank_path, *self._arguments)
        except OSError as error:
            say(f"The results were not computed: {error}.")
        except subprocess.TimeoutExpired:
            say(f"The results are not computed: that would take more than {SUMMARY:.0f} s.")
        if recorded.manifest["rank"] == 0 and not self._quiet:
            self._say_next(recorded.path)

    def _report(self, recorded: RecordedWindow) -> None:
        """Compute the results of this rank when ``--analyse`` says; the first rank shows them or the next command."""
        recorded.wait()
        if not recorded.rank_path.is_dir():
            raise NotARunError(str(recorded.rank_path))
        manifest = recorded.manifest
        speak = not self._quiet and manifest["rank"] == 0
        for name, state in manifest["collectors"].items():
            if "failed" in state and "unwritten" not in state:  # a file that could not be written was logged
                say(f"Not recorded: {name}: {state['failed']}.")
        try:
            if self._analyse == "now":
                if manifest["world_size"] == 1:  # else other ranks may still train on this machine
                    recorded.note("speeds", speeds_of_program())
                show_results(recorded.rank_path, manifest["world_size"], speak=speak, first=self._arguments)
                return
            if self._analyse == "background":
                background.start_analysis(recorded.rank_path, *self._arguments)
        except OSError as error:
            say(f"The results were not computed: {error}.")
        if speak:
            self._say_next(recorded.path)

    def _say_next(self, run: Path) -> None:
        say(f"Recorded. Next: {shlex.join(['stepscope', 'report', str(run), *self._arguments])}")

    def _report_spawned(self, found: list[Path]) -> None:
        """Show the results of the ranks that the program spawned, which have computed their own.

        Of several trainings, each of which has a run, the latest is shown and the others are named.
        """
        if self._quiet:
            return
        run, *others = found
        if self._analyse == "now":
            background.run_report(run, *self._arguments)
        else:
            self._say_next(run)
        if others:
            named = ", ".join(map(str, others[:3])) + (", …" if len(others) > 3 else "")
            say(f"{len(found)} trainings were recorded, each in a run of its own. The others: {named}")

    def stand_in_failed(self, error: Exception) -> None:
        """Say that the package's names could not be replaced."""
        say(f"--as: the script keeps its own profiler ({type(error).__name__}: {error}).")

    def _finish_stand_in(self, stand_in: StandIn) -> None:
        """Put the package's names back; warn if the script has not used its profiler."""
        stand_in.remove()
        if not sessions_begun() and not self._quiet and find_job_rank().rank == 0:
            say(
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
        timed = f" Their times: stepscope report {shlex.quote(str(automatic.timed))}" if automatic.timed else ""
        awaited = f"; until then {automatic.awaited} could still step" if automatic.awaited else ""
        return (
            f"Nothing was recorded: the program ended after {count_text(automatic.steps, 'training step')}, before the "
            f"first one to record{awaited}. Use a smaller --skip, such as --skip {min(automatic.steps - 1, 1)}.{timed}"
        )
    often = [f"{function} {count_text(count, 'time')}" for function, count in counts.most_common(2) if count > 1]
    compiled = f" The program compiled again and again: {', '.join(often)}." if often else ""
    launched = next(framework.launched for name, framework in FRAMEWORKS.items() if name in automatic.frameworks)
    return (
        f"Nothing was recorded: no optimizer stepped in this process, so no training step was found.{compiled} "
        "Record the whole program as one step with --steps all, or mark steps in the script: "
        "`with stepscope.profile() as prof:` and prof.step(). Processes that the script forks or starts as commands "
        "are not recorded; use "
        f"`{launched}` for them."
    )


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
