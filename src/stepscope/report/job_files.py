"""The files of a job, in ``cluster/`` of its run; and what its screen shows, which they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepscope.advise.finding import Finding
from stepscope.advise.run_findings import findings_of_job
from stepscope.analyse.results import Results, kinds
from stepscope.cluster.arrivals import with_waits
from stepscope.cluster.job_summary import JobSummary, job_summary
from stepscope.cluster.job_tables import JobTables
from stepscope.errors import InputError
from stepscope.report.files.json_results import Json
from stepscope.report.protocol import Format, Source
from stepscope.report.rank_answers import RankAnswers
from stepscope.report.stale_files import fresh, write_stale
from stepscope.run import RankRun, Run
from stepscope.trace.run_directory import NAMED_TIME

#: What is nested among the results of a job. It is written with every format: the screen comes from it.
_NESTED = Json(name="findings")


@dataclass(frozen=True)
class JobAnswer:
    """What the analysis of a job says: its numbers, and its findings, the most important first."""

    summary: JobSummary
    findings: Sequence[Finding]


def write_job(run: Run, formats: Sequence[Format], directory: Path | None = None) -> list[Path]:
    """Write the files of a job and return their paths; those in ``cluster`` are kept where nothing changed.

    Args:
        run: A run of several ranks.
        formats: Formats besides ``findings.json`` and ``summary.json``, which are written with every one of them.
        directory: Where to write; the run's ``cluster`` folder by default.

    Raises:
        OutputError: The directory cannot be made or written.
        InputError: No rank can be read.
    """
    if not formats:
        return []
    made_of = job_made_of(run) if directory is None else None
    return write_stale([_NESTED, *formats], lambda: _source(run), directory or job_directory(run), made_of)


def job_answer(run: Run) -> JobAnswer:
    """Return what is to be said of a job: as its files say it, if nothing changed since they were written.

    Raises:
        InputError: No rank can be read.
    """
    directory = job_directory(run)
    if fresh(_NESTED, directory, job_made_of(run)):
        with suppress(msgspec.ValidationError):  # of another version of the source: computed again
            return JobAnswer(
                msgspec.json.decode((directory / "summary.json").read_bytes(), type=JobSummary),
                msgspec.json.decode((directory / "findings.json").read_bytes(), type=list[Finding]),
            )
    job = run.job
    return JobAnswer(job_summary(job), findings_of_job(run, job))


def _source(run: Run) -> Source:
    """Return everything that is written of a job."""
    job = run.job
    tables = {name: getattr(job.tables, name).lazy() for name in JobTables.__dataclass_fields__}
    nested = {"findings": findings_of_job(run, job), "summary": job_summary(job)}
    return Source(tables, {**job.results, **{name: msgspec.to_builtins(found) for name, found in nested.items()}}, {})


def source_in_job(rank: RankRun, run: Run, *, nested: bool = False) -> Source:
    """Return what is written of a rank of a job, with the waits in its collectives that only the job knows.

    Args:
        rank: The rank.
        run: The run of all ranks.
        nested: Leave out the results that are tables.
    """
    tables = with_waits(rank.shown, run.job.arrivals, rank.rank)
    answers = RankAnswers(rank, Results(tables))
    if not nested:
        return Source(tables, answers, rank.manifest)
    documents = [name for name in answers if name not in kinds() or kinds()[name].extension == "json"]
    return Source(tables, {name: answers[name] for name in documents}, rank.manifest)


def job_directory(run: Run) -> Path:
    """Return where the files of a job go; those of a selection of steps never replace the run's."""
    return run.ranks[0].directory.path.parent / f"cluster{run.ranks[0].selection}"


def job_name(run: Run) -> str:
    """Return what the screen of a job is named after: its program, or its directory without the time."""
    worker = next((rank.manifest["worker"] for rank in run.ranks[:1] if rank.manifest.get("worker")), None)
    return Path(str(worker or NAMED_TIME.sub("", job_directory(run).parent.resolve().name))).name


def job_made_of(run: Run) -> str | None:
    """Return a fingerprint of everything that the files of a job depend on; None if nothing of it is kept."""
    of_ranks = [_made_of(rank) for rank in run.ranks]
    if None in of_ranks:
        return None
    return hashlib.sha256(json.dumps(of_ranks).encode()).hexdigest()


def _made_of(rank: RankRun) -> str | None:
    try:
        made_of = rank.made_of
        return None if made_of is None else f"{rank.directory.path.name} {made_of} {rank.manifest.get('left_out')}"
    except InputError as error:
        return f"{rank.directory.path.name} {error.message}"
