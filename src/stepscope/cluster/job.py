"""A job as one object: the summaries of its ranks, below each other, and what the analyses make of them.

What ``stepscope.job`` returns::

    job = stepscope.job("stepscope-runs/train_20261121-093012")
    job.tables.collectives          # a Polars data frame over all ranks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import polars as pl

from stepscope.cluster.arrivals import arrivals
from stepscope.cluster.clocks import clocks
from stepscope.cluster.groups import parallel_groups, stages
from stepscope.cluster.job_results import JobResults
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import meetings
from stepscope.cluster.pipeline import pipeline_stages
from stepscope.cluster.rank_summary import RankSummary, decode, encode, job_tables
from stepscope.cluster.reduction.addresses import local_path
from stepscope.cluster.reduction.engines import Engine
from stepscope.cluster.reduction.rank_reduction import reduce
from stepscope.cluster.reduction.reduce_job import SECTION, RankToReduce, faulty, reduce_rank, works_at
from stepscope.cluster.slow_links import link_speeds, transits
from stepscope.cluster.what_if.critical_path import unknown_path
from stepscope.cluster.what_if.job_what_if import WhatIf
from stepscope.errors import InputError
from stepscope.read.common.source import rank_in_name
from stepscope.run import CaptureRun, RankRun, Run
from stepscope.trace.manifest import Manifest

#: Losses of captures whose rank is not in the job for that reason.
_DUPLICATE = "file_duplicate"
_NO_RANK = frozenset({"file_unreadable", "rank_left_out", _DUPLICATE})


class Job:
    """All ranks of a job.

    Args:
        tables: The tables of the job.
        path: Directory or address of its run, or of its captures; None if it was not read from one.
    """

    def __init__(self, tables: JobTables, path: str | Path | None = None) -> None:
        self.tables = tables
        self.path = path

    @cached_property
    def meetings(self) -> pl.DataFrame:
        """Which collectives of the ranks are one; see :func:`stepscope.cluster.meetings.meetings`."""
        return meetings(self.tables)

    @cached_property
    def clocks(self) -> pl.DataFrame:
        """How to get the times of the job from those of each rank; see :func:`stepscope.cluster.clocks.clocks`."""
        return clocks(self.tables, self.meetings)

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """Who waits for whom; see :func:`stepscope.cluster.arrivals.arrivals`."""
        return arrivals(self.tables, self.meetings, self.clocks)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """What each process group is for; see :func:`stepscope.cluster.groups.parallel_groups`."""
        return parallel_groups(self.tables)

    @cached_property
    def stages(self) -> pl.DataFrame:
        """The stage of each rank of a pipeline: rank, stage; no rows without a pipeline."""
        return stages(self.tables)

    @cached_property
    def pipeline(self) -> pl.DataFrame:
        """What each stage of a pipeline does; see :func:`stepscope.cluster.pipeline.pipeline_stages`."""
        on_host = self.tables.ranks.filter(pl.col("device") == "cpu")["rank"].to_list()
        return pipeline_stages(self.tables.steps, self.meetings, self.stages, on_host)

    @cached_property
    def transits(self) -> pl.DataFrame:
        """What each collective takes once all are there; see :func:`stepscope.cluster.slow_links.transits`."""
        return transits(self.tables, self.meetings, self.groups)

    @cached_property
    def links(self) -> pl.DataFrame:
        """How fast each link is; see :func:`stepscope.cluster.slow_links.link_speeds`."""
        return link_speeds(self.transits)

    @property
    def what_if(self) -> WhatIf | None:
        """The job without its stragglers; None where the data cannot say who waited for whom."""
        return None if isinstance(self._replayed, str) else self._replayed

    @property
    def critical_path(self) -> pl.DataFrame:
        """What decides how long its steps take; see :mod:`stepscope.cluster.what_if.critical_path`."""
        replayed = self._replayed
        return (
            unknown_path(self.tables.steps["step"], replayed) if isinstance(replayed, str) else replayed.critical_path
        )

    @cached_property
    def _replayed(self) -> WhatIf | str:
        try:
            return WhatIf(self.tables, self.meetings, self.arrivals, self.stages)
        except ValueError as error:
            return str(error)

    @cached_property
    def results(self) -> JobResults:
        """Every result of the job by name; each is computed once, when it is first read."""
        return JobResults(self)

    def __repr__(self) -> str:
        return f"Job({str(self.path)!r}, ranks={self.tables.ranks.height})"


def job(path: str | Path | Run, *, engine: Engine | None = None) -> Job:
    """Return the job of a run, or of captures in a directory or at an address.

    Of ranks of a run whose summaries are fresh nothing else is read; the others are read and reduced first, and their
    summaries kept. Of captures nothing is kept: ``stepscope reduce`` keeps the summaries.

    Args:
        path: The run, its directory, or a directory or an address (``s3://…``) of captures.
        engine: Where ranks are reduced; by default here, or by one process for each core.

    Raises:
        NotARunError: ``path`` holds neither a run nor a capture.
        InputError: The path, or every capture there, cannot be read.
    """
    chosen = engine or Engine()
    if not isinstance(path, Run) and (local := local_path(str(path))) is None:
        works = works_at([str(path)])
        said = [*_left_out(work.manifest for work in works)]
        return Job(job_tables([*_summaries(works, chosen), *said]), str(path))
    run = path if isinstance(path, Run) else Run(local or path)
    found, stale = [], []
    for rank in run.ranks:
        kept = kept_summary(rank)
        found += [kept] if kept else []
        stale += [] if kept else [rank]
    for rank, made in zip(stale, _summaries([_work(rank) for rank in stale], chosen), strict=True):
        found.append(made)
        if "fault" not in made.facts:
            rank.keep_section(SECTION, encode(made))
    return Job(job_tables([*found, *_left_out(map(_manifest, run.ranks))]), run.path)


def kept_summary(rank: RankRun) -> RankSummary | None:
    """Return the summary that is kept of a rank; None if it is not there, damaged, or of other captures."""
    with suppress(InputError, ValueError):
        if (kept := rank.kept_section(SECTION)) is not None:
            said = decode(kept)
            # The directory may have been copied since, or have another name.
            return replace(said, facts={**said.facts, "directory": rank.directory.path.name})
    return None


def summary_of(rank: RankRun) -> RankSummary:
    """Return the summary of a rank: the one that is kept, else one that is made here and kept.

    Raises:
        InputError: The rank cannot be read.
    """
    kept = kept_summary(rank)
    if kept is None:
        content = encode(reduce(rank.tables_for_job(), rank.manifest, directory=rank.directory.path.name))
        rank.keep_section(SECTION, content)
        kept = decode(content)
    return kept


def _summaries(works: Sequence[RankToReduce], engine: Engine) -> list[RankSummary]:
    made = dict(engine.map(reduce_rank, works, sum(work.size for work in works)))
    return [
        decode(faulty(works[place], result) if isinstance(result := made[place], str) else result)
        for place in range(len(works))
    ]


def _work(rank: RankRun) -> RankToReduce:
    path = rank.directory.path
    if isinstance(rank, CaptureRun):
        return RankToReduce(rank.rank, rank.captures[0].name, rank.manifest, tuple(rank.captures), steps=rank.steps)
    try:
        number = rank.rank
    except InputError:  # its manifest is damaged
        number = rank.directory.rank
    return RankToReduce(number, path.name, {}, directory=path, steps=rank.steps)


def _manifest(rank: RankRun) -> Manifest:
    with suppress(InputError):
        return rank.manifest
    return {}


def _left_out(manifests: Iterable[Manifest]) -> Iterator[RankSummary]:
    """Yield what is known of ranks whose captures could not be read."""
    for manifest in manifests:
        for path, said in manifest.get("left_out", {}).items():
            if said.get("loss") in _NO_RANK:
                # A duplicate is in the manifest of its rank.
                known = manifest.get("rank") if said["loss"] == _DUPLICATE else None
                rank = rank_in_name(Path(path)) if known is None else known
                facts = {"directory": Path(path).name, "fault": said.get("reason", "")}
                yield RankSummary(-1 if rank is None else rank, facts)
