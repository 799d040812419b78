"""The findings of a job: what does not fit first, then what holds it up, largest gain first; and its first sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from stepscope.advise.finding import MISFITS, Finding, by_gain
from stepscope.advise.job.misfit_findings import misfit_findings
from stepscope.advise.job.slow_link import slow_link_findings
from stepscope.advise.job.slow_rank import slow_rank_findings
from stepscope.advise.job.slow_stage import slow_stage_findings
from stepscope.analyse.quantities import count_text, percent_text
from stepscope.cluster.job import Job
from stepscope.cluster.job_summary import JobSummary, over_ranks
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.misfits import misfits, without_device_work
from stepscope.cluster.slow.hidden_waits import with_hidden_waits
from stepscope.cluster.slow.own_time import hides_waits
from stepscope.cluster.slow.own_work import work_by_role
from stepscope.cluster.slow.slow_ranks import arrival_order, gain, roles, slow_ranks
from stepscope.cluster.slow_links import as_its_peers
from stepscope.cluster.what_if.job_what_if import Gain


def job_findings(job: Job) -> list[Finding]:
    """Return the findings of a job; a healthy job has none."""
    tables, what_if = _comparable(job.tables), job.what_if
    role_of = roles(tables, job.stages)
    works = work_by_role(tables, role_of)

    def lost(rank: int) -> int | None:
        return what_if.of_ranks({rank}).ns if what_if is not None and rank in what_if.ranks else None

    slow = with_hidden_waits(slow_ranks(tables, role_of, works), tables, lost)
    alone = {*slow.filter(pl.col("peers_wait_ns").is_null())["rank"]}
    delayed = {*slow.filter("delayed")["rank"]}
    hidden = hides_waits(tables.steps, tables.ranks.filter(pl.col("device") == "cpu")["rank"].to_list())

    def saved_by_ranks(ranks: set[int]) -> tuple[int, int, int] | None:
        if ranks & alone:
            return None  # nobody says what they should take
        of_times = gain(tables, role_of, ranks, with_delay=not delayed.isdisjoint(ranks))
        if what_if is None or not ranks <= set(what_if.ranks):
            return of_times
        # Own times alone know no pipeline, in which the other stages hide part of what a rank takes longer; the job put
        # together again knows no waits inside of operators.
        found = what_if.of_ranks(ranks)[:3]
        return max(found, of_times) if of_times is not None and hidden else found

    def saved_by_stage(stage: int, has_more: bool) -> Gain | None:  # noqa: FBT001 - as its caller asks
        if what_if is None:
            return None
        return what_if.balanced() if has_more else what_if.of_stage(stage)

    recurring = work_by_role(tables, role_of, usual=False) if slow["recurs"].any() else works
    order = arrival_order(job.arrivals) if job.clocks["offset_ns"].is_not_null().any() else None
    found = [
        *slow_rank_findings(tables, slow, (works, recurring), order, (saved_by_ranks, lost)),
        *slow_stage_findings(tables, job.pipeline, saved_by_stage),
        *slow_link_findings(
            tables,
            job.links,
            lambda links: what_if.of_collectives(as_its_peers(job.transits, links)) if what_if else None,
        ),
    ]
    return [*misfit_findings(misfits(job.tables, works, job.clocks)), *by_gain(found)]


def _comparable(tables: JobTables) -> JobTables:
    """Return the tables without steps of which it is not known what is communication, or the work of the device.

    A capture without collectives, in a job that has some, lacks them: its waits for others look as its own.
    """
    talking, bare = tables.collectives["rank"].unique(), without_device_work(tables)
    known = pl.col("rank").is_in(talking.implode()) if len(talking) else pl.lit(value=True)
    return replace(tables, steps=tables.steps.filter(known & ~pl.col("rank").is_in(bare)))


def job_verdict(findings: Sequence[Finding], summary: JobSummary, time: Callable[[float], str]) -> str:
    """Return what is to be said of a job: the title of its first finding about time.

    What does not fit together (:data:`~.finding.MISFITS`) is told above this sentence.

    Args:
        findings: Its findings, in the order of ``findings.json``.
        summary: Its numbers.
        time: Returns nanoseconds as text.
    """
    for finding in findings:
        if finding.cause not in MISFITS:
            return finding.title
    of_ranks = {rank.rank: rank.step_ns for rank in summary.ranks}  # a rank may be there twice
    known = over_ranks(of_ranks.values())
    if known is None or summary.step_ns is None:
        return f"No steps were found on {count_text(len(summary.ranks), 'rank')}: nothing can be compared."
    low, high = time(known.lowest), time(known.highest)
    spread = "" if low == high else f" ({low} to {high})"
    facts = [f"a step takes {time(summary.step_ns)} on {count_text(known.ranks, 'rank')}{spread}"]
    largest = max((entry.part for entry in summary.split), key=lambda part: part.share, default=None)
    facts += [f"{percent_text(largest.share)} of it {largest.name}"] if largest else []
    communication = summary.communication
    if communication is not None and communication.wait_ns is not None:
        facts.append(f"ranks wait {time(communication.wait_ns)} for each other")
    hung = any(finding.cause == "hung-collective" for finding in findings)
    limit = " of the steps before the job hung" if hung else _limit(summary)
    return f"Nothing stands out{limit}: {', '.join(facts)}."


def _limit(summary: JobSummary) -> str:
    """Return what may keep something from being seen; empty if nothing does."""
    if summary.steps == 1:
        return " of what one step can show"
    if summary.unlike:
        return " of the recorded steps, which are unlike the others of the run"
    if summary.communication is not None and summary.clocks.unknown:
        return " of what can be compared (not all clocks are aligned)"
    if summary.communication is not None and summary.communication.wait_ns is None:
        return " of what can be compared (who waits for whom is not known)"
    return ""
