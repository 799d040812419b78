"""Files and summaries of a run, as the verbs that end with them share it."""

from __future__ import annotations

from pathlib import Path

from stepscope.cli import options
from stepscope.report import registry
from stepscope.report.protocol import Source
from stepscope.report.summary import render
from stepscope.run import RankRun, Run


def write(rank: RankRun, formats: str, *, pretty: bool, directory: Path | None = None) -> list[Path]:
    """Write one rank's files and return their paths.

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
    source = Source(rank.tables, rank.results, rank.manifest)
    target = directory or rank.directory.results
    return [path for chosen_format in chosen for path in chosen_format.write(source, target)]


def show(run: Run, *, quiet: bool) -> None:
    """Print the summary of every rank, where the files are, and the next command to type."""
    console = options.output_console()
    if quiet:
        console.print(str(run.path), soft_wrap=True, markup=False)
        return
    for rank in run.ranks:
        render(rank.summary, rank.manifest, console)
    results = run.path / "rank*" / "results" if len(run.ranks) > 1 else run.ranks[0].directory.results
    console.print(f"Results   {results}", soft_wrap=True, markup=False)
    console.print(
        f"Timeline  stepscope export {run.path} --to pftrace   then open it at ui.perfetto.dev",
        soft_wrap=True,
        markup=False,
    )
