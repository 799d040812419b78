"""A trace that another tool recorded becomes a run with the same tables and results.

Kineto or Chrome JSON, also gzipped; JSON and protobuf of Paddle's profilers, those of ``fluid.profiler`` too; XPlane
files of JAX and XLA (``….xplane.pb``), or their directory (``plugins/profile/<time>``), in which every host is a rank;
a directory that MindSpore's profiler wrote on a CPU, or that a profiler of an Ascend device wrote (``…_ascend_ms``,
``…_ascend_pt``, ``PROF_…``), or one above several of these. The files are copied; those of several ranks become the
ranks of one run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options

if TYPE_CHECKING:
    from stepscope.run import Run


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``import``."""
    parser = subparsers.add_parser(
        "import", help="make a run of a trace that another tool recorded", description=__doc__
    )
    parser.add_argument(
        "trace",
        type=Path,
        nargs="+",
        help="trace file, or directory of JAX's, MindSpore's or Ascend's profilers; several are the ranks of one run",
    )
    options.add_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the run's directory only")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Copy the traces into a new run, read them, write the results and print the summary."""
    from stepscope.cli.outputs import show, write

    with imported(arguments.trace, arguments.output, quiet=arguments.quiet) as run:
        for rank in run.ranks:
            write(rank, "csv,json", pretty=False)
    show(run, quiet=arguments.quiet)
    return 0


@contextmanager
def imported(traces: list[Path], output: Path, *, quiet: bool) -> Iterator[Run]:
    """Copy traces into a new run and give it to the caller; where that fails, no half-made run is left behind."""
    from stepscope.read import sniff
    from stepscope.run import Run, adopt
    from stepscope.trace.run_directory import RankDirectory, check_writable

    found = [(rank, paths) for trace in traces for rank, paths in sniff.by_rank(trace).items()]
    captures = {paths[0]: paths for _, paths in found}
    ranks = assign_ranks({paths[0]: rank for rank, paths in found})
    check_writable(output)
    directory = _new_run(output, traces[0])
    try:
        for rank, path in sorted(ranks.items()):
            adopt(captures[path], RankDirectory(directory / f"rank{rank}"), world_size=len(ranks))
        with options.reading_progress(quiet=quiet) as progress:
            yield Run(directory, progress=progress)
    except BaseException:
        # A trace that turns out unreadable leaves no half-made run behind.
        shutil.rmtree(directory, ignore_errors=True)
        raise


def assign_ranks(said: dict[Path, int | None]) -> dict[int, Path]:
    """Give every file its rank: what it says itself, else the first free number in the order given.

    Raises:
        UsageError: Two files say they are the same rank; neither may silently win.
    """
    from stepscope.errors import UsageError

    ranks: dict[int, Path] = {}
    for path, rank in said.items():
        if rank is None:
            continue
        if rank in ranks:
            message = f"{ranks[rank]} and {path} both say they are rank {rank}."
            raise UsageError(message, "Import them one at a time.")
        ranks[rank] = path
    for path, rank in said.items():
        if rank is None:
            ranks[next(number for number in range(len(said) + 1) if number not in ranks)] = path
    return ranks


def _new_run(output: Path, trace: Path) -> Path:
    """Return a directory that does not exist yet; an import never writes into another run."""
    stem = re.sub(r"[^\w.+-]", "_", re.split(r"\.json|\.xplane\.pb", trace.name)[0]) or "trace"
    base = f"{stem[:100]}_{time.strftime('%Y%m%d-%H%M%S')}"
    names = (base, *(f"{base}_{number}" for number in range(2, 1000)))
    return next(output / name for name in names if not (output / name).exists())
