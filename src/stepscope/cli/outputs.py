"""Writes the files and prints the summaries of a run, for several verbs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from stepscope.cli import options
from stepscope.errors import InputError
from stepscope.report import registry
from stepscope.report.protocol import Source
from stepscope.report.stale_files import write_stale
from stepscope.report.terminal.printed_summary import render
from stepscope.run import RankRun, Run


def write(rank: RankRun, formats: str, *, pretty: bool, directory: Path | None = None) -> list[Path]:
    """Write one rank's files and return their paths; those in its ``results`` folder are kept where nothing changed.

    Args:
        rank: The rank.
        formats: Names with commas between them; ``all`` or ``none``.
        pretty: Indent JSON files.
        directory: Where to write; the rank's ``results`` folder by default.

    Raises:
        UsageError: A format is unknown.
        OutputError: The directory cannot be written.
    """
    chosen = registry.select(formats, pretty=pretty)
    made_of = rank.made_of if directory is None else None
    target = directory or rank.directory.results
    return write_stale(chosen, lambda: Source(rank.tables, rank.results, rank.manifest), target, made_of)


def write_all(run: Run, formats: str, *, pretty: bool) -> dict[Path, str]:
    """Write the files of every rank into its ``results`` folder.

    A rank that cannot be read is named on standard error and taken out of ``run``, if another can be read.

    Returns:
        The directories of the ranks that cannot be read, each with the reason.

    Raises:
        InputError: No rank can be read; the error is that of the first.
    """
    unreadable: dict[Path, InputError] = {}
    for rank in list(run.ranks):
        try:
            write(rank, formats, pretty=pretty)
            _ = rank.summary
            rank.release()  # of many ranks, one at a time is in memory
        except InputError as error:
            unreadable[rank.directory.path] = error
            run.ranks.remove(rank)
    if not run.ranks:
        raise next(iter(unreadable.values()))
    reasons = {path: error.message for path, error in unreadable.items()}
    for path, reason in reasons.items():
        sys.stderr.write(f"stepscope: {path.name} is left out: {reason}\n")
    return reasons


def show(run: Run, *, quiet: bool) -> None:
    """Print the summary of every rank, the path of the results and the next command; quietly, the run's path only."""
    console = options.output_console()
    if quiet:
        console.print(str(run.path), soft_wrap=True, markup=False)
        return
    for rank in run.ranks:
        render(rank.summary, rank.manifest, console)
    whole = run.ranks[0].directory.path.parent
    results = run.ranks[0].directory.results if len(run.ranks) == 1 else whole / "rank*" / "results"
    console.print(f" results      {near(results)}", soft_wrap=True, markup=False)
    command = f"stepscope export {shlex.quote(str(near(whole)))} --to pftrace"
    console.print(f" timeline     {command}   (for ui.perfetto.dev)\n", soft_wrap=True, markup=False)


def near(path: Path) -> Path:
    """Return a path as one would type it here: relative if it lies below the working directory."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path
