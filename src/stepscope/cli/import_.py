"""A trace that another tool recorded becomes a run with the same tables and results.

Kineto or Chrome JSON, also gzipped; JSON and protobuf of Paddle's profilers, those of ``fluid.profiler`` too; XPlane
files of JAX and XLA (``….xplane.pb``), or their directory (``plugins/profile/<time>``), in which every host is a rank;
or a directory that MindSpore's profiler wrote on a CPU (``…_ascend_ms``), or one above several of these. The files are
copied; those of several ranks become the ranks of one run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
from pathlib import Path

from stepscope.cli import options


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``import``."""
    parser = subparsers.add_parser(
        "import", help="make a run of a trace that another tool recorded", description=__doc__
    )
    parser.add_argument(
        "trace",
        type=Path,
        nargs="+",
        help="trace file, or directory of JAX's or MindSpore's profiler; several become the ranks of one run",
    )
    options.add_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the run's directory only")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Copy the traces into a new run, read them, write the results and print the summary."""
    from stepscope.cli.files import show, write
    from stepscope.read import sniff
    from stepscope.run import Run
    from stepscope.trace.run_directory import check_writable

    found = [(rank, paths) for trace in arguments.trace for rank, paths in sniff.by_rank(trace).items()]
    captures = {paths[0]: paths for _, paths in found}
    ranks = assign_ranks({paths[0]: rank for rank, paths in found})
    check_writable(arguments.output)
    directory = _new_run(arguments.output, arguments.trace[0])
    try:
        for rank, path in sorted(ranks.items()):
            _adopt(captures[path], directory, rank, world_size=len(ranks))
        with options.reading_progress(quiet=arguments.quiet) as progress:
            run = Run(directory, progress=progress)
            for rank_run in run.ranks:
                write(rank_run, "csv,json", pretty=False)
    except BaseException:
        # A trace that turns out unreadable leaves no half-made run behind.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    show(run, quiet=arguments.quiet)
    return 0


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


def _adopt(captures: list[Path], run: Path, rank: int, *, world_size: int) -> None:
    from stepscope.read import sniff
    from stepscope.trace.run_directory import RankDirectory

    identity = sniff.identify(captures[0])
    directory = RankDirectory(run / f"rank{rank}")
    directory.create()
    for path in captures:
        _copy(path, directory.capture)
    directory.write_manifest(
        {
            "status": "complete",
            "source": "import",
            "imported_from": str(captures[0].resolve()),
            "format": identity.format,
            "rank": rank,
            "rank_said": identity.rank,
            "world_size": identity.world_size or world_size,
            "host": identity.host or "",
            "imported_ns": time.time_ns(),
        }
    )


def _copy(path: Path, target: Path) -> None:
    """Copy a capture, of a directory the files that its reader looks at; 0600 and 0700, under a name that is free."""
    from stepscope.read import sniff

    free = (path.name, *(f"{path.name}_{number}" for number in range(2, 1000)))
    copy = next(target / name for name in free if not (target / name).exists())
    for file in sniff.files_of(path):
        place = copy / file.relative_to(path) if path.is_dir() else copy
        for directory in reversed(place.relative_to(target).parents[:-1]):
            (target / directory).mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(file, place)
        place.chmod(0o600)
