"""Writes the files and prints the summaries of a run, for several verbs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.advise.rank_findings import rank_findings, rank_sentence
from stepscope.analyse.quantities import count_text
from stepscope.cli import options
from stepscope.cluster.job import summary_of
from stepscope.errors import InputError, OutputError, UsageError
from stepscope.report import registry
from stepscope.report.protocol import Format, Source
from stepscope.report.rank_answers import RankAnswers
from stepscope.report.safe_text import printable
from stepscope.report.stale_files import write_stale
from stepscope.report.terminal.printed_summary import render
from stepscope.run import RankRun, Run

if TYPE_CHECKING:
    from stepscope.report.job_files import JobAnswer

#: Formats unless the user names others: of a rank, and of a job.
_OF_RANK, _OF_JOB = "csv,json", "csv"
#: Formats whose files show the waits of collectives: of a job they are written when it is known.
WITH_WAITS = ("json", "db")
#: A job of so many ranks also gets the files of each rank; of a larger one, ``--rank`` asks for them.
_FEW_RANKS = 8
#: Lines below the screen of a job.
_BELOW = 5


@dataclass(frozen=True)
class Wanted:
    """What files are wanted: names of formats with commas between them (None: the usual ones), and of which ranks.

    Attributes:
        formats: Names with commas between them; ``all`` or ``none``; None for the usual ones.
        pretty: Indent JSON files.
        every_rank: Write the files of every rank of a job, however many there are.
    """

    formats: str | None = None
    pretty: bool = False
    every_rank: bool = False


@dataclass(frozen=True)
class Written:
    """What came of it: directories of ranks that cannot be read, each with the reason; and the answer of a job."""

    unreadable: dict[Path, str]
    job: JobAnswer | None = None


def write(rank: RankRun, chosen: Sequence[Format], *, directory: Path | None = None, deep: bool = True) -> list[Path]:
    """Write one rank's files and return their paths; those in its ``results`` folder are kept where nothing changed.

    Args:
        rank: The rank.
        chosen: The formats.
        directory: Where to write; the rank's ``results`` folder by default.
        deep: Whether to write the results that look more closely, too.

    Raises:
        OutputError: The directory cannot be written.
    """
    made_of = rank.made_of if directory is None else None
    made_of = made_of if deep or made_of is None else f"{made_of} standard"
    target = directory or rank.results_directory
    return write_stale(chosen, lambda: Source(rank.shown, RankAnswers(rank, deep=deep), rank.manifest), target, made_of)


def write_with_waits(
    ranks: Iterable[RankRun], run: Run, chosen: Sequence[Format], *, directory: Path | None = None
) -> Iterator[Path]:
    """Write files of ranks of a job with the waits in their collectives that only the job knows; yield their paths.

    Args:
        ranks: The ranks.
        run: The run of all ranks.
        chosen: The formats.
        directory: Where to write, in a folder for each rank; the ``results`` folder of each by default.

    Raises:
        OutputError: A directory cannot be written.
    """
    from stepscope.report.job_files import job_made_of, source_in_job

    whole = job_made_of(run) if chosen and directory is None else None
    for rank in ranks if chosen else ():
        target = rank.results_directory if directory is None else directory / rank.directory.path.name
        for output in chosen:
            made_of = whole and f"{rank.made_of} {whole}"
            yield from write_stale(
                [output], partial(source_in_job, rank, run, nested=output.name == "json"), target, made_of
            )
        rank.release()  # of many ranks, one at a time is in memory


def write_all(run: Run, wanted: Wanted) -> Written:
    """Write the files of a run: of a job into ``cluster``, of ranks into their ``results`` folders.

    A job of more than :data:`_FEW_RANKS` ranks gets the files of a rank only where they are asked for, and those that
    a job has none of. A rank that cannot be read is named on standard error and taken out of ``run``, if another can
    be read.

    Raises:
        InputError: No rank can be read; the error is that of the first.
        OutputError: A directory cannot be written.
        UsageError: A format is unknown.
    """
    chosen = registry.select(wanted.formats or _OF_RANK, pretty=wanted.pretty)
    if len(run.ranks) > _FEW_RANKS and not wanted.every_rank:
        chosen = [output for output in chosen if wanted.formats and output.name not in registry.JOB_FORMATS]
    by_job = [output for output in chosen if len(run.ranks) > 1 and output.name in WITH_WAITS]
    errors: dict[Path, InputError] = {}
    written = []
    asked = [rank for rank in run.ranks if not rank.reduced] if len(run.ranks) > 1 else run.ranks
    for rank in asked if chosen or len(run.ranks) == 1 else ():
        try:
            if len(run.ranks) > 1 and not wanted.every_rank and "origin" in rank.manifest:
                continue  # only its summary was made, for the job
            deep = wanted.every_rank or len(run.ranks) == 1
            write(rank, [output for output in chosen if output not in by_job], deep=deep)
            _ = rank.summary
            if rank.manifest.get("world_size") != 1:
                summary_of(rank)  # while its tables are here
            rank.release()  # of many ranks, one at a time is in memory
            written.append(rank)
        except InputError as error:
            errors[rank.directory.path] = error
    if len(errors) == len(run.ranks):
        raise next(iter(errors.values()))
    reasons = {path: error.message for path, error in errors.items()}
    answer = None
    if len(run.ranks) > 1:
        from stepscope.report.job_files import job_answer, write_job

        _ = [*write_with_waits(written, run, by_job)]
        write_job(run, registry.select_of_job(wanted.formats or _OF_JOB, pretty=wanted.pretty))
        answer = job_answer(run)
        reasons |= {run.path / name: reason for name, reason in answer.summary.unreadable if (run.path / name).is_dir()}
    for path, reason in reasons.items():
        sys.stderr.write(f"stepscope: {path.name} is left out: {reason}\n")
    run.ranks[:] = [rank for rank in run.ranks if rank.directory.path not in reasons]
    return Written(reasons, answer)


def keep_one(run: Run, number: int) -> None:
    """Leave one rank in a run, as if its directory had been named.

    Raises:
        UsageError: The run has no rank of that number.
    """
    for rank in run.ranks:
        if rank.rank == number:
            run.path, run.ranks = rank.directory.path, [rank]
            return
    numbers = sorted(rank.rank for rank in run.ranks)
    message = f"{run.path} has no rank {number}."
    raise UsageError(message, f"It has {count_text(len(numbers), 'rank')}, from {numbers[0]} to {numbers[-1]}.")


def show(run: Run, answer: JobAnswer | None, *, refused: OutputError | None = None) -> None:
    """Print the screen of a job, or the summary of its only rank; the path of the results and the next commands.

    Args:
        run: The run.
        answer: What is to be said of a job; None for one rank.
        refused: Why the results could not be written.
    """
    console = options.output_console()
    first = run.ranks[0]
    whole = first.directory.path.parent
    path = shlex.quote(str(near(whole)))
    if answer is None:
        render(first.summary, rank_findings(first), first.manifest, console, rank_sentence(first))
        results, rank = first.results_directory, []
    else:
        from stepscope.report.job_files import job_directory, job_name
        from stepscope.report.terminal.job_screen import JobPage, render_job

        render_job(JobPage(job_name(run), answer.summary, answer.findings, below=_BELOW), console)
        results, rank = (
            job_directory(run),
            [f" one rank     stepscope report {path} --rank {_rank_to_see(run, answer)}"],
        )
    problems = run.rank_problems if answer is None else []
    lines = [
        *(f" ranks        {printable(problem)}" for problem in problems),
        f" results      {near(results)}" if refused is None else f" results      {refused.message}",
        *(
            []
            if refused is None
            else [f"              stepscope export {path} --to csv,json --output DIR   (writes them elsewhere)"]
        ),
        *rank,
        f" timeline     stepscope export {path} --to pftrace   (for ui.perfetto.dev)",
        f" next         stepscope view {path}   or, after a change, stepscope compare {path} NEW\n",
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _rank_to_see(run: Run, answer: JobAnswer) -> int:
    """Return the first rank that a finding names and that can be read."""
    there = {rank.rank for rank in run.ranks}
    return next((rank for finding in answer.findings for rank in finding.ranks if rank in there), run.ranks[0].rank)


def near(path: Path) -> Path:
    """Return a path as one would type it here: relative if it lies below the working directory."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return path
