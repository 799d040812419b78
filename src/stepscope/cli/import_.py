"""Make a run of what another tool recorded, with the same tables and results.

Kineto or Chrome JSON, also gzipped; JSON and protobuf of Paddle's profilers, those of fluid.profiler too; XPlane files
of JAX and XLA (*.xplane.pb); JSON of rocprofv3; SQLite exports of Nsight Systems; Perfetto's *.pftrace; profiles of
py-spy and others in the form of speedscope, pprof or collapsed stacks; or directories: of
torch.profiler.tensorboard_trace_handler, any number of ranks and windows; plugins/profile/<time> of JAX, in which every
host is a rank; of a profiler of Ascend devices (*_ascend_ms, *_ascend_pt, PROF_*) or of MindSpore on a CPU; or any
directory above several of these. The files are copied. Those of several ranks become the ranks of one run, which is
named after the directory.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options
from stepscope.trace.run_directory import NAMED_TIME

if TYPE_CHECKING:
    from stepscope.read import Capture
    from stepscope.run import Run

#: Directories whose name says nothing of the job; the run is named after the one above.
_NAMELESS = re.compile(
    r"plugins|profile|ASCEND_PROFILER_OUTPUT|FRAMEWORK|mindstudio_profiler_output|capture|rank\d+|\d{4}(?:_\d\d){5}"
)
#: Most processes that are named in one line.
_MOST_NAMED = 8

HELP = "make a run of a trace that another tool recorded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``import``."""
    parser.add_argument(
        "trace", type=_trace, nargs="+", help="trace file, or directory of traces; several are the ranks of one run"
    )
    parser.add_argument(
        "--window",
        type=_window,
        default="all",
        metavar="all|last|N",
        help="of the windows that torch.profiler wrote of a rank: all on one time line, the last, or the Nth in order "
        "of time (default: all)",
    )
    options.add_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the run's directory only")


def _trace(text: str) -> Path:
    from stepscope.cluster.reduction.addresses import local_path

    path = local_path(text)
    if path is None:
        message = f"{text} is not on this machine: `stepscope reduce {text} --output JOB`, then `stepscope merge JOB`"
        raise argparse.ArgumentTypeError(message)
    return path


def _window(text: str) -> str:
    if text in ("all", "last") or (text.isdecimal() and int(text) > 0):
        return text
    message = f"{text!r} is not a window; write all, last, or a number from 1"
    raise argparse.ArgumentTypeError(message)


def execute(arguments: argparse.Namespace) -> int:
    """Copy the traces into a new run, read them, write the results and print the summary."""
    from stepscope.cli.outputs import Wanted, show, write_all

    with imported(arguments.trace, arguments.output, quiet=arguments.quiet, window=arguments.window) as run:
        written = write_all(run, Wanted())
        _remove(written.unreadable, run)
    if arguments.quiet:
        options.output_console().print(str(run.path), soft_wrap=True, markup=False)
    else:
        show(run, written.job)
    _say_left_out(run)
    return 0


@contextmanager
def opened(path: Path, *, steps: tuple[int, int] | None, quiet: bool) -> Iterator[Run]:
    """Give the run at a path; of captures of another tool, one that is made of them first."""
    from stepscope.run import Run
    from stepscope.trace import run_directory

    if not run_directory.exists(path) or run_directory.ranks(path) or run_directory.runs(path):
        with options.reading_progress(quiet=quiet) as progress:
            yield Run(path, steps=steps, progress=progress)
    else:
        with imported([path], options.DEFAULT_OUTPUT, quiet=quiet) as made:
            yield Run(made.path, steps=steps)


@contextmanager
def imported(traces: list[Path], output: Path, *, quiet: bool, window: str = "all") -> Iterator[Run]:
    """Copy traces into a new run and give it to the caller; if that fails, no half-made run stays behind."""
    from stepscope.errors import UsageError
    from stepscope.read import sniff
    from stepscope.run import Run, adopt
    from stepscope.trace.run_directory import RankDirectory, check_writable, ranks, runs

    for trace in traces:
        if ranks(trace) or runs(trace):
            message = f"{trace} is a run of stepscope already, or a directory of runs."
            raise UsageError(message, f"Use `stepscope report {trace}`, or import the capture/ of a rank.")
    found = sniff.ranks([sniff.look(trace) for trace in traces], window)
    _say_ranks(found.numbered)
    _warn_of_left_out(found.left_out, sum(map(len, found.captures.values())))
    check_writable(output)
    directory = _new_run(output, traces)
    try:
        for rank, captures in found.captures.items():
            left_out = found.left_out_of(rank)
            adopt(captures, RankDirectory(directory / f"rank{rank}"), world_size=found.world_size, left_out=left_out)
        with options.reading_progress(quiet=quiet) as progress:
            yield Run(directory, progress=progress)
    except BaseException:
        # A trace that turns out unreadable leaves no half-made run behind.
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _say_ranks(numbered: Mapping[int, str]) -> None:
    """Say which process got which rank, if several got one by the order of their names."""
    if len(numbered) > 1:
        named = [f"{Path(worker).name} is rank {rank}" for rank, worker in list(numbered.items())[:_MOST_NAMED]]
        more = f" and {len(numbered) - _MOST_NAMED} more" if len(numbered) > _MOST_NAMED else ""
        sys.stderr.write(f"stepscope: no file says its rank; in order of name: {', '.join(named)}{more}.\n")


def _warn_of_left_out(left_out: Sequence[Capture], kept: int) -> None:
    for capture in left_out:
        sys.stderr.write(f"stepscope: {capture.root} is left out: {capture.fault}\n")
    if left_out:
        sys.stderr.write(f"stepscope: {kept} of {kept + len(left_out)} captures are imported.\n")


def _say_left_out(run: Run) -> None:
    """Say on the last line what is not in the run: what was said before may have scrolled away."""
    names = [Path(path).name for rank in run.ranks for path in rank.manifest.get("left_out", {})]
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        sys.stderr.write(
            f"stepscope: left out: {', '.join(names[:_MOST_NAMED])}{more}. The first rank's losses say why.\n"
        )


def _remove(unreadable: Mapping[Path, str], run: Run) -> None:
    """Remove the directories of ranks that cannot be read, and name them in the manifest of the first rank."""
    from stepscope.run import RankRun
    from stepscope.trace.run_directory import RankDirectory

    left_out = {}
    for path, why in unreadable.items():
        origin = RankDirectory(path).read_manifest().get("imported_from", path.name)
        left_out[origin] = {"loss": "rank_left_out", "reason": why}
        shutil.rmtree(path, ignore_errors=True)
    if left_out:
        directory = run.ranks[0].directory
        manifest = directory.read_manifest()
        directory.write_manifest({**manifest, "left_out": {**manifest.get("left_out", {}), **left_out}})
        run.ranks[0] = RankRun(directory)  # its losses are others now


def _new_run(output: Path, traces: Sequence[Path]) -> Path:
    """Return a directory that does not exist yet, named after the job; an import never writes into another run."""
    if len(traces) == 1 and not traces[0].is_dir():
        name = re.split(r"(?:\.pt\.trace)?\.json|\.xplane\.pb|\.(?:sqlite|pftrace|folded|collapsed)\b", traces[0].name)[
            0
        ]
    else:
        directories = [trace if trace.is_dir() else trace.parent for trace in traces]
        directory = Path(os.path.commonpath([path.resolve() for path in directories]))
        while _NAMELESS.fullmatch(directory.name):
            directory = directory.parent
        name = NAMED_TIME.sub("", directory.name)
    stem = re.sub(r"[^\w.+-]", "_", name) or "trace"
    base = f"{stem[:100]}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (base, *(f"{base}_{number}" for number in range(2, 1000)))
    return next(output / name for name in names if not (output / name).exists())
