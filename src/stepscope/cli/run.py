"""Run a training script, unchanged, and record some of its steps.

The script runs to its own end, with its own output and exit code. Steps are found by its optimizers. Afterwards the
summary of the recorded steps goes to standard error, which leaves standard output to the script.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from stepscope.cli.options import step_range
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.options import COLLECTORS, DEFAULT_OUTPUT, Options, check_rate, check_sample
from stepscope.collect.ranks import find_job_rank
from stepscope.collect.session import background
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.session import sessions_begun
from stepscope.collect.session.window import Settings
from stepscope.collect.start import program
from stepscope.collect.start.automatic import Automatic, Selection
from stepscope.collect.start.environment import hide_from_mindspore
from stepscope.collect.start.profile import absolute
from stepscope.collect.start.stand_in import PACKAGES, StandIn
from stepscope.errors import UsageError
from stepscope.trace.run_directory import check_writable

EPILOG = """\
examples:
  stepscope run train.py --epochs 3              steps 5 to 9 of train.py
  stepscope run --steps 100:104 -m project.train   a module, steps 100 to 104
  torchrun --nproc-per-node 2 -m stepscope run train.py
  msrun --worker_num 2 --local_worker_num 2 python -m stepscope run train.py
"""

#: Switch → what it records, and whether it is on without being asked for. Memory and shapes cost little and answer
#: most; stacks double what a step costs; watching MindSpore's data pipelines adds a third to each batch they make.
SWITCHES: dict[str, tuple[str, bool]] = {
    "shapes": ("shapes and types of operator inputs", True),
    "memory": ("memory taken and freed; with Paddle only when asked for by name", True),
    "stacks": ("the Python stack of every operator", False),
    "modules": ("the module that called each operator", False),
    "flops": ("floating-point operations of matrix products and convolutions", False),
    "host-pipeline": ("calls, queues and waits of MindSpore's threads, without which it tells no phases", True),
    "data": ("queues and processor time of MindSpore's data pipelines", False),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``run``."""
    parser = subparsers.add_parser(
        "run",
        help="run a training script and record some of its steps",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="stepscope run [options] (script | -m module | -c code) [arguments]",
    )
    parser.add_argument("--skip", type=_count, metavar="N", help="steps before the first one recorded (default: 5)")
    parser.add_argument("--active", type=_count, metavar="N", help="steps recorded (default: 5)")
    parser.add_argument("--steps", type=_steps, metavar="A:B", help="record steps A to B, both included, or `all`")
    parser.add_argument(
        "-o", "--output", type=Path, default=DEFAULT_OUTPUT, metavar="DIR", help="directory of runs (%(default)s)"
    )
    for name, (what, on) in SWITCHES.items():
        text = f"record {what} ({'on' if on else 'off'})"
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=text)
    parser.add_argument("--all", action="store_true", help="record all of these")
    parser.add_argument(
        "--collector",
        choices=COLLECTORS,
        default="auto",
        help="who records PyTorch's operators: PyTorch's Kineto, or our own recorder, built on first use (%(default)s)",
    )
    parser.add_argument(
        "--sample",
        type=_number(check_sample, "fraction above 0 and up to 1"),
        default=1.0,
        metavar="P",
        help="record a fraction of PyTorch's operators, natively: 0.01",
    )
    parser.add_argument(
        "--counters-hz",
        type=_number(check_rate, "number of samples a second, 0 to 1000"),
        default=10.0,
        metavar="N",
        help="samples a second of the host's counters; 0 for none (10)",
    )
    parser.add_argument(
        "--as",
        dest="stand_in",
        choices=sorted(PACKAGES),
        metavar="NAME",
        help=f"record what the script's own calls of this package's profiler say ({', '.join(PACKAGES)})",
    )
    parser.add_argument("--later", action="store_true", help="do not compute the results now: `stepscope report` will")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a module")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, metavar="code", help="run code")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="script and its arguments")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the program and return its exit code; the report comes when the program has ended altogether."""
    target = _program(arguments)
    target.check()
    program.keep_standard_streams()
    output = absolute(arguments.output)
    if arguments.stand_in is None:
        check_writable(output)
    ending = _Ending(quiet=arguments.quiet, later=arguments.later)
    # Python runs these in reverse: after the program's threads and its own atexit functions, the report; then the end.
    atexit.register(ending.die)
    atexit.register(ending.finish)
    options = _options(arguments)
    selection = _selection(arguments)
    hide_from_mindspore()
    if arguments.stand_in is not None:
        ending.stand_in = StandIn(arguments.stand_in, ending.stand_in_failed)
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
    """What is left to do when the program has ended."""

    def __init__(self, *, quiet: bool, later: bool) -> None:
        self.automatic: Automatic | None = None
        self.stand_in: StandIn | None = None
        self._later = later
        self._quiet = quiet
        self._process = os.getpid()
        self._interrupted = False

    def fail(self, error: BaseException) -> int:
        """The program raised ``error``: close the recording, and do what Python does then."""
        wrong = not isinstance(error, SystemExit) or error.code not in (None, 0)
        if wrong and self.automatic is not None and os.getpid() == self._process:
            self.automatic.end(f"failed at step {self.automatic.steps}", {"exception": type(error).__name__})
        if isinstance(error, SystemExit):
            raise error
        self._interrupted = isinstance(error, KeyboardInterrupt)
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
            _report(recorded, speak=speak, later=self._later)
        elif speak:
            _say(_nothing_recorded(self.automatic))

    def stand_in_failed(self, error: Exception) -> None:
        """Our names could not take the place of the package's."""
        _say(f"--as: the script keeps its own profiler ({type(error).__name__}: {error}).")

    def _finish_stand_in(self, stand_in: StandIn) -> None:
        """Put the package's names back; say so where the script has not used its profiler."""
        stand_in.remove()
        if not sessions_begun() and not self._quiet and find_job_rank().rank == 0:
            _say(
                f"Nothing was recorded: the script started no profiler of {stand_in.name}. Run it without --as, and "
                "stepscope finds its steps itself."
            )

    def die(self) -> None:
        """End by the signal, where the program ended with a KeyboardInterrupt."""
        if self._interrupted:
            program.die_of_interrupt()


def _report(recorded: RecordedWindow, *, speak: bool, later: bool) -> None:
    """Compute the results of this rank; the first rank shows them and says what to type next."""
    recorded.wait()
    run = shlex.quote(str(recorded.path))
    for problem in _problems(recorded):
        _say(f"Not recorded: {problem}.")
    if not later:
        _results(recorded.rank_path, quiet=not speak)
    elif speak:
        _say(f"Recorded. Next: stepscope report {run}")


def _results(rank: Path, *, quiet: bool) -> None:
    """Compute the results in a child process; what it cannot do, it says itself."""
    try:
        background.run_report(rank, *(["--quiet"] if quiet else []))
    except OSError as error:
        _say(f"The results were not computed: {error}.")


def _problems(recorded: RecordedWindow) -> list[str]:
    """Return a line for each collector that failed."""
    states = recorded.manifest["collectors"]
    return [f"{name}: {state['failed']}" for name, state in states.items() if "failed" in state]


def _nothing_recorded(automatic: Automatic) -> str:
    """Say why there is no run, and how to get one."""
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
    return (
        "Nothing was recorded: no optimizer stepped in this process, so no training step was found. Record the whole "
        "program as one step with --steps all, or mark steps in the script: `with stepscope.profile() as prof:` and "
        f"prof.step(). Processes that the script starts are not recorded; use {_launch(automatic)} for them."
    )


def _launch(automatic: Automatic) -> str:
    """Return how the ranks of a job are recorded, by the launcher of the program's framework."""
    known = [framework.launched for name, framework in FRAMEWORKS.items() if name in automatic.frameworks]
    return f"`{known[0]}`"


def _say(text: str) -> None:
    """Write to standard error, which the program may have closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"stepscope: {text}\n")
        sys.stderr.flush()


def _program(arguments: argparse.Namespace) -> program.Program:
    """Return what to run; whatever follows it on the command line is its own."""
    for kind, words in (("module", arguments.module), ("code", arguments.code), ("script", arguments.script)):
        if words is None:
            continue
        if kind == "script" and words[:1] == ["--"]:
            words = words[1:]
        if words:
            return program.Program(kind, words[0], tuple(words[1:]))
    message = "There is nothing to run."
    raise UsageError(message, "Write: stepscope run [options] script.py [arguments], or -m module, or -c code.")


def _options(arguments: argparse.Namespace) -> Options:
    chosen = {}
    for name, (_, on) in SWITCHES.items():
        given = getattr(arguments, name.replace("-", "_"))
        chosen[name] = (on or arguments.all) if given is None else given
    return Options(
        record_shapes=chosen["shapes"],
        profile_memory=chosen["memory"],
        memory_by_default=arguments.memory is None and not arguments.all,
        with_stack=chosen["stacks"],
        with_modules=chosen["modules"],
        with_flops=chosen["flops"],
        host_pipeline=chosen["host-pipeline"],
        counters_hz=arguments.counters_hz,
        data_process=chosen["data"],
        collector=arguments.collector,
        sample=arguments.sample,
    )


def _selection(arguments: argparse.Namespace) -> Selection:
    """Return the steps to record.

    Raises:
        UsageError: ``--steps`` comes with ``--skip`` or ``--active``, or no step is to be recorded.
    """
    if arguments.steps is not None:
        if arguments.skip is not None or arguments.active is not None:
            message = "--steps says both what --skip and what --active say."
            raise UsageError(message, "Use --steps alone, or the other two.")
        chosen: Selection = arguments.steps
        return chosen
    default = Selection()
    skip = default.skip if arguments.skip is None else arguments.skip
    active = default.active if arguments.active is None else arguments.active
    if active == 0:
        message = "--active 0 records nothing."
        raise UsageError(message, "Use --active 1 or more, or run the script without stepscope.")
    return Selection(skip, active)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        message = f"{text!r} is no number of steps"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _number(check: Callable[[object], float], expected: str) -> Callable[[str], float]:
    """Return what reads an argument that ``check`` accepts."""

    def read(text: str) -> float:
        try:
            return check(float(text))
        except (ValueError, UsageError):
            message = f"{text!r} is no {expected}"
            raise argparse.ArgumentTypeError(message) from None

    return read


def _steps(text: str) -> Selection:
    if text == "all":
        return Selection(0, 0)
    first, last = step_range(text)
    return Selection(first, last - first + 1)
