"""Ranks that hold up the others, as findings: who, by how much, and what of its own makes it so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import polars as pl

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.job.diagnosis import EXPLAINS, Diagnosis, Row, diagnose, ms
from stepscope.analyse.quantities import count_text
from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.hidden_waits import HOLDS_UP, Lost
from stepscope.cluster.slow.own_work import OwnWork
from stepscope.cluster.slow.slow_ranks import WORTH

#: What the job's step saves without the slowness of these ranks: middle, low and high, ns.
Gain: TypeAlias = Callable[[set[int]], tuple[int, int, int] | None]

#: Arrivals contradict a rank if it comes later than others by less than this share of what it takes longer.
_CONTRADICTS, _AGREES = 0.2, 0.5


def slow_rank_findings(
    tables: JobTables,
    slow: pl.DataFrame,
    works: tuple[list[OwnWork], list[OwnWork]],
    order: pl.DataFrame | None,
    gains: tuple[Gain, Lost],
) -> list[Finding]:
    """Return a finding for each slow rank, or for a machine whose ranks are all slow for one cause.

    Args:
        tables: The tables of the job.
        slow: What :func:`stepscope.cluster.slow.slow_ranks.slow_ranks` returns.
        works: The work of the ranks in the usual step, and in the mean of all: that of ranks whose hiccups recur.
        order: What :func:`stepscope.cluster.slow.slow_ranks.arrival_order` returns; None if no clock is known.
        gains: What the job's step saves if some ranks are as fast as their peers, by whatever is known; and what it
            loses by one rank, where the recorded job says who waited for whom.
    """
    gain, lost = gains
    rows = slow.filter("slow").sort("added_ns", descending=True).rows(named=True)
    found = [
        (row, diagnose(tables, row, works[row["recurs"]], lost(row["rank"]))) for row in rows if _others_wait(row, lost)
    ]
    everyone = {int(row["rank"]) for row, _ in found}
    late = {} if order is None else {row["rank"]: row for row in order.rows(named=True)}
    findings = []
    for members in _by_machine(tables, found):
        ranks = {int(row["rank"]) for row, _ in members}
        saved = _saved(gain, ranks, everyone)
        if saved is None or saved[1][0] >= WORTH * int(members[0][0]["step_ns"]):
            findings.append(_finding(tables, members, saved, late, alone=ranks == everyone))
    return findings


def _others_wait(row: Row, lost: Lost) -> bool:
    """Return whether other ranks wait while this one works.

    In a job that works in lockstep, its peers wait in communication for as long. In a pipeline, or where the host runs
    ahead, a part of that is hidden: then the recorded job says what it loses. Of the only rank of a stage none does.
    """
    if row["added_ns"] is None or row["added_ns"] <= 0:
        return False
    waits = row["peers_wait_ns"]
    return waits is None or waits >= EXPLAINS * row["added_ns"] or (lost(row["rank"]) or 0) >= HOLDS_UP * row["step_ns"]


def _saved(gain: Gain, ranks: set[int], everyone: set[int]) -> tuple[str, tuple[int, int, int]] | None:
    """Return what repairing ``ranks`` saves, and how that was computed: alone, or after the others."""
    alone, whole = gain(ranks), gain(everyone)
    if alone is None or whole is None:
        return None
    others = gain(everyone - ranks) if everyone - ranks else None
    if others is None or alone[0] >= whole[0] - others[0]:
        return "the step of the job, less the step in which these ranks work as long as their peers", alone
    low, middle, high = (max(0, whole[i] - others[0]) for i in (1, 0, 2))
    return "the same, once the other slow ranks are repaired: until then the job waits for them", (middle, low, high)


def _by_machine(tables: JobTables, found: list[tuple[Row, Diagnosis]]) -> list[list[tuple[Row, Diagnosis]]]:
    """Put the ranks of a machine together if all of them are slow for one cause.

    Where no machine is known, ranks that follow each other are those of one: launchers number them so.
    """
    host_of = dict(tables.ranks.select("rank", "host").drop_nulls().rows())
    size: dict[str, int] = defaultdict(int)
    for host in host_of.values():
        size[host] += 1
    groups: dict[tuple[str | None, str, str | None], list[tuple[Row, Diagnosis]]] = defaultdict(list)
    for row, why in found:
        groups[host_of.get(row["rank"]), why.cause, why.operator].append((row, why))
    result = []
    for (host, _, _), members in groups.items():
        whole = host is not None and 1 < len(members) == size[host] < len(host_of)
        apart = _following(members) if not host_of else [[one] for one in members]
        result += [members] if whole else apart
    return result


def _following(members: list[tuple[Row, Diagnosis]]) -> list[list[tuple[Row, Diagnosis]]]:
    """Return the ranks in runs whose numbers follow each other; the slowest of a run first."""
    place = {int(row["rank"]): number for number, (row, _) in enumerate(members)}
    runs: list[list[int]] = []
    for rank in sorted(place):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [[members[number] for number in sorted(place[rank] for rank in run)] for run in runs]


def _finding(
    tables: JobTables,
    members: list[tuple[Row, Diagnosis]],
    saved: tuple[str, tuple[int, int, int]] | None,
    late: dict[int, Row],
    *,
    alone: bool,
) -> Finding:
    (row, why), ranks = members[0], tuple(sorted(int(row["rank"]) for row, _ in members))
    added = round(max(why.amount_ns for _, why in members))
    basis, (middle, low, high) = saved or ("", (None, None, None))
    arrival, confidence = _arrival(row, late.get(int(row["rank"])))
    others = tables.steps["rank"].n_unique() - len(ranks)
    host = dict(tables.ranks.select("rank", "host").rows()).get(ranks[0])
    together = f"The {len(ranks):,} ranks of {host}" if host else f"Ranks {ranks[0]} to {ranks[-1]}"
    who = f"Rank {ranks[0]} keeps" if len(ranks) == 1 else f"{together} keep"
    whom = "the other rank" if others == 1 else f"the other {others:,}"
    waits = row["peers_wait_ns"]
    # Where most of it is hidden, or waits for a core lengthen it, the others wait for what the job loses. Of several
    # slow ranks, each costs less than the others wait for it.
    hidden = waits is not None and (waits < EXPLAINS * added or row["disturbed"])
    hidden |= alone and (middle or added) < EXPLAINS * added
    held = middle if hidden and middle else added
    title = f"{who} {whom} waiting {ms(held)} of {ms(row['step_ns'])} ms a step: {why.because}"
    return Finding(
        cause=why.cause,
        title=title,
        gain_ns=middle,
        gain_low_ns=low,
        gain_high_ns=high,
        basis=basis,
        confidence=confidence,
        evidence=(*why.evidence, *_amounts(row), *arrival),
        remedy=why.remedy,
        check="stepscope report RUN",
        ranks=ranks,
        operator=why.operator,
        added_ns=added,
    )


def _amounts(row: Row) -> tuple[Evidence, ...]:
    if row["peers_wait_ns"] is None:
        return ()
    rank, own, added = int(row["rank"]), int(row["own_ns"]), int(row["added_ns"])
    peers = "its peer" if row["peers"] == 1 else f"its {row['peers']:,} peers"
    return (
        Evidence(
            text=f"without communication, its step takes {ms(own)} ms; that of {peers} {ms(own - added)} ms (median)",
            value=float(added),
            unit="ns",
            rank=rank,
        ),
        Evidence(
            text=f"{ms(row['peers_wait_ns'])} ms a step more of communication that nothing hides"
            f"{' and of waiting for a core' if row['disturbed'] else ''} on {peers}, "
            f"over {count_text(row['steps'], 'step')}",
            value=float(row["peers_wait_ns"]),
            unit="ns",
            rank=rank,
        ),
    )


def _arrival(row: Row, late: Row | None) -> tuple[tuple[Evidence, ...], Confidence]:
    """Return what the arrivals on the job's clock say of a rank, and how sure the finding is with it."""
    if late is None or late["late_ns"] is None:
        return (), Confidence.LIKELY
    often = f"{late['last']:,} of {count_text(late['collectives'], 'collective')}"
    last = f"it is the last in {often}, {ms(late['late_ns'])} ms a step late"
    evidence = Evidence(text=last, value=float(late["late_ns"]), unit="ns", rank=int(row["rank"]))
    share = late["late_ns"] / row["added_ns"]
    agrees = (
        Confidence.MEASURED if share >= _AGREES else Confidence.POSSIBLE if share < _CONTRADICTS else Confidence.LIKELY
    )
    return (evidence,), agrees
