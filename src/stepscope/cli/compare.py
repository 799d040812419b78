"""Say what became slower from A to B, by how much, and how sure.

A and B are runs, directories of runs (all of them count), or captures of other tools. Bytes, calls and shapes are
compared exactly; the step gets a verdict where several runs a side, or --turns, allow one. Of one run a side, single
operators are told that changed beyond all others.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.comparison.comparison import Comparison
    from stepscope.comparison.gates import Gate, Outcome

HELP = "say what became slower between two runs, and how sure that is"
EPILOG = """\
examples:
  stepscope compare RUN NEW                            two runs
  stepscope compare runs/main runs/branch              all runs of two directories: the step gets an interval
  stepscope compare RUN NEW --html                         the same as one page, to look at and to send
  stepscope compare RUN NEW --fail-on slower:5%,memory:2%
  stepscope compare --turns "python train.py" --against main      live, in turns: main's tree and this one
  stepscope compare --turns "python train.py --fused" --against "python train.py"
"""

#: Exit codes: a limit was exceeded; a limit cannot be told, with ``--strict``.
GATE_FAILED, GATE_UNSURE = 3, 6
#: What ``--html`` says without a file.
_HERE = Path("comparison.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``compare``."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("a", type=Path, nargs="?", metavar="A", help="run, directory of runs, or capture: before")
    parser.add_argument("b", type=Path, nargs="?", metavar="B", help="the same, after")
    parser.add_argument("--rank", type=int, metavar="N", help="compare rank N of jobs (default: the first in common)")
    parser.add_argument("--turns", metavar="COMMAND", help="start the command, and let it train in turns with another")
    parser.add_argument(
        "--against",
        metavar="REVISION|COMMAND",
        help="with --turns: what it is compared with, a revision of git or another command (default: itself)",
    )
    parser.add_argument(
        "--pairs", type=_pairs, metavar="N,N", help="with --turns: pairs of processes after which to look (3,5,10)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        metavar="S",
        help="with --turns: own time of each side's steps in a pair (2)",
    )
    parser.add_argument(
        "--cores", choices=("one", "all"), help="with --turns: train on one core (default without a GPU), or on all"
    )
    parser.add_argument(
        "--calm-heap", action="store_true", help="with --turns: let the heap keep its memory, against page faults"
    )
    parser.add_argument(
        "--no-explain", action="store_true", help="with --turns: do not record the two to explain a difference"
    )
    options.add_output(parser)
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMITS",
        help="end with exit code 3 if one is exceeded: slower:5%%,memory:2%%,count:NAME,operator:NAME:10%%; it can be "
        "repeated",
    )
    parser.add_argument("--strict", action="store_true", help="end with exit code 6 if a limit cannot be told")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON; - for standard output")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the parts of the step as CSV; - likewise")
    parser.add_argument(
        "--html",
        type=Path,
        nargs="?",
        const=_HERE,
        metavar="FILE",
        help=f"write one page with everything in it, to send or to keep (default: {_HERE})",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but what is asked for")


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print, write, and judge the limits."""
    from stepscope.comparison.gates import parse_gates

    gates = [gate for limits in arguments.fail_on for gate in parse_gates(limits)]
    found = _of_runs(arguments) if arguments.turns is None else _in_turns(arguments, gates)
    outcomes = found.judge(gates)
    _write(found, outcomes, arguments)
    return _exit_code(outcomes, strict=arguments.strict)


def _of_runs(arguments: argparse.Namespace) -> Comparison:
    from stepscope.comparison.comparison import compare, remember
    from stepscope.errors import UsageError

    if arguments.a is None or arguments.b is None or arguments.against is not None:
        message = "The command line names no two sides."
        raise UsageError(
            message, "Write: stepscope compare A B, or stepscope compare --turns COMMAND --against REVISION."
        )
    found = compare(arguments.a, arguments.b, rank=arguments.rank)
    remember(found)
    return found


def _in_turns(arguments: argparse.Namespace, gates: list[Gate]) -> Comparison:
    from stepscope.comparison.turns.explanation import explained
    from stepscope.comparison.turns.live_pair import PairPlan
    from stepscope.comparison.turns.looks import CALM_HEAP, PAIRS, TurnsPlan, compare_in_turns, devices_here
    from stepscope.comparison.turns.programs import two_programs
    from stepscope.comparison.verdict import FASTER, SLOWER
    from stepscope.errors import UsageError

    if arguments.a is not None:
        message = "--turns starts its own programs, and takes no runs."
        raise UsageError(message, "Write: stepscope compare --turns COMMAND --against REVISION.")
    one_core = arguments.cores == "one" or (arguments.cores is None and not devices_here())
    pair = PairPlan(arguments.seconds, one_core, CALM_HEAP if arguments.calm_heap else None)
    limit = min((gate.limit for gate in gates if gate.about == "slower"), default=0.05)

    def say(text: str) -> None:
        if not arguments.quiet:
            sys.stderr.write(f"stepscope: {text}\n")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the programs and the tree end with it
    with two_programs(arguments.turns, arguments.against, Path.cwd()) as (a, b):
        found = compare_in_turns(a, b, TurnsPlan(arguments.pairs or PAIRS, limit, pair, say))
        asked = any(gate.about != "slower" for gate in gates) or found.verdict in (SLOWER, FASTER)
        if asked and not arguments.no_explain:
            found = explained(found, a, b, arguments.output, say)
    return found


def _pairs(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if not numbers or numbers[0] < 1 or list(numbers) != sorted(set(numbers)):
        message = f"{text!r} is not a list of increasing numbers of pairs, such as 3,5,10"
        raise argparse.ArgumentTypeError(message)
    return numbers


def _write(found: Comparison, outcomes: list[Outcome], arguments: argparse.Namespace) -> None:
    from stepscope.report.terminal.comparison_screen import render_comparison
    from stepscope.report.whole_files import write_whole

    streamed = Path("-") in (arguments.json, arguments.csv)
    for path, content in ((arguments.json, _as_json), (arguments.csv, _as_csv)):
        if path == Path("-"):
            sys.stdout.write(content(found, outcomes))
        elif path is not None:
            write_whole(path, content(found, outcomes).encode())
    if not streamed and not arguments.quiet:
        render_comparison(found, outcomes, options.output_console())
    if arguments.html is not None:
        from stepscope.report.page.one_file import comparison_html

        write_whole(arguments.html, comparison_html(found, outcomes))
        if not streamed:
            sys.stdout.write(f"{arguments.html}\n" if arguments.quiet else f" page         {arguments.html}\n")


def _as_json(found: Comparison, outcomes: list[Outcome]) -> str:
    from stepscope.report.safe_text import storable, unprintable_as_json

    text = json.dumps(found.to_dict(outcomes), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{unprintable_as_json(storable(text))}\n"


def _as_csv(found: Comparison, _: list[Outcome]) -> str:
    import polars as pl

    from stepscope.report.safe_text import csv_cells
    from stepscope.trace.tables import with_series

    table = found.table()
    return with_series(table, csv_cells([column for column in table if column.dtype == pl.String])).write_csv()


def _exit_code(outcomes: list[Outcome], *, strict: bool) -> int:
    from stepscope.comparison.gates import FAILED, UNSURE

    if any(outcome.outcome == FAILED for outcome in outcomes):
        return GATE_FAILED
    unsure = [outcome for outcome in outcomes if outcome.outcome == UNSURE]
    for outcome in unsure:
        sys.stderr.write(f"stepscope: {outcome.rule} cannot be told: {outcome.why}.\n")
    return GATE_UNSURE if unsure and strict else 0
