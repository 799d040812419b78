"""The findings of a run: of its only rank; or of the job, and those that its ranks share."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepscope.advise.finding import MISFITS, Evidence, Finding, Findings, by_gain
from stepscope.advise.job_findings import job_findings
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in, rank_findings
from stepscope.advise.rules.besides_rules import CAUSES
from stepscope.analyse.quantities import duration_text
from stepscope.cluster.job import Job
from stepscope.cluster.job_results import waits_of_steps
from stepscope.cluster.reduction.rank_reduction import steps_of_device
from stepscope.errors import InputError
from stepscope.run import RankRun, Run

#: Of a job of more ranks some are read whole: so many that findings name, and so many of the others.
_FEW_RANKS = 8
_NAMED, _USUAL = 2, 3
#: Of such a job, a rank with more bytes of captures is not read: that would take seconds.
_LARGE = 64 << 20
#: Causes of a rank by itself that say why it keeps others waiting.
_BECAUSE = {
    "data-wait-rank": frozenset(["data-loader-slow", "slow-collate", "useless-workers", "restarted-workers"]),
    "host-bound-rank": frozenset(
        ["python-in-step", "sleep-in-step", "io-in-step", "lock-wait", "subprocess-in-step", "wait-in-step"]
    ),
}
#: What a slow rank, link or stage shows as, too: it stands behind them.
_SYMPTOM = "exposed-communication"
#: Part of the step that communication takes at least to be told.
_TOLD = 0.07
#: Causes of which the time holds what ranks wait for a slow one.
_WITH_WAITS = frozenset(
    [
        *("exposed-communication", "communication-not-overlapped", "small-collectives", "synchronised-batch-norm"),
        *("unneeded-collectives", "buffer-broadcasts", "unused-parameter-search"),
    ]
)


def findings(run: str | Path | Run) -> Findings:
    """Return what makes the steps of a run slow, the most important first; a healthy run has none.

    Of a job, what does not fit together stands first, then what holds up its ranks and what they share.

    Args:
        run: A run, or anything that :func:`stepscope.open` takes.

    Raises:
        NotARunError: The path holds neither a run nor a capture.
        InputError: The path cannot be read.
    """
    opened = run if isinstance(run, Run) else Run(run)
    alone = len(opened.ranks) == 1
    return Findings(rank_findings(opened.ranks[0]) if alone else findings_of_job(opened, opened.job))


def findings_of_job(run: Run, opened: Job) -> list[Finding]:
    """Return the findings of a job of several ranks, and those that at least half of its ranks share.

    Of a job of more than :data:`_FEW_RANKS` ranks, a few of the usual ones speak for all.
    """
    of_job = job_findings(opened)
    misfits = [finding for finding in of_job if finding.cause in MISFITS]
    others = [finding for finding in of_job if finding.cause not in MISFITS]
    usual, slow = usual_and_slow(run.ranks, [rank for finding in others for rank in finding.ranks])
    shared, own = _of_ranks(usual, slow, sample=len(run.ranks) > _FEW_RANKS)
    known = {finding.cause for finding in shared}
    made = [made_slow_by(finding, own) for finding in others]
    named = [cause for cause in made if cause is not None and cause.cause not in known]
    others = [finding for finding, cause in zip(others, made, strict=True) if cause is None]
    reasons = [reason_of(finding, own) for finding in others]
    others = [with_reason(finding, reason) for finding, reason in zip(others, reasons, strict=True)]
    shared = [one for one in shared if all(reason is None or _differs(one, reason) for reason in reasons)]
    transit = waits_of_steps(opened.arrivals)["transit"].median() if shared else None
    moving = [without_bubbles(one, transit if isinstance(transit, float) else None) for one in shared]
    shared = [*filter(None, moving)]
    held = by_gain([*others, *named])[:1]
    shared = [*filter(None, (without_waits(one, held[0]) for one in shared))] if held else shared
    told = by_gain([*others, *map(of_its_rank, [*named, *shared])])
    return [*misfits, *sorted(told, key=lambda finding: finding.cause == _SYMPTOM)]


def of_its_rank(finding: Finding) -> Finding:
    """Return what only one rank of several has, with that rank in its first words."""
    if len(finding.ranks) != 1:
        return finding
    return msgspec.structs.replace(finding, title=f"Rank {finding.ranks[0]}: {finding.title}")


def made_slow_by(slow: Finding, own: Sequence[Finding]) -> Finding | None:
    """Return what one rank does besides training, if that is most of what it takes longer than the others."""
    return _most_of(slow, [one for one in own if one.cause in CAUSES])


def reason_of(slow: Finding, own: Sequence[Finding]) -> Finding | None:
    """Return why a rank is slow, if that is most of what it takes longer.

    A rank that waits for its data or is busy on its host says why by itself; of one that computes longer, what no other
    rank has does.
    """
    if slow.cause != "slow-rank":
        return _most_of(slow, [one for one in own if one.cause in _BECAUSE.get(slow.cause, ())])
    usual = _WITH_WAITS | {one.cause for one in own if one.ranks != slow.ranks}
    return _most_of(slow, [one for one in own if one.cause not in usual])


def with_reason(slow: Finding, reason: Finding | None) -> Finding:
    """Return the finding with what the rank's own one knows: where the time goes, and what to change."""
    if reason is None:
        return slow
    first, *others = slow.evidence
    told = Evidence(text=reason.title, value=reason.gain_ns, unit="ns")
    said = [msgspec.structs.replace(one, rank=slow.ranks[0]) for one in (told, *reason.evidence)]
    return msgspec.structs.replace(slow, evidence=(first, *said, *others), remedy=reason.remedy)


def without_waits(shared: Finding, slow: Finding) -> Finding | None:
    """Return what the ranks share less what they wait for a slow one; None if that is most of it."""
    gain, waits = shared.gain_ns or 0, slow.gain_ns or 0
    if shared.cause not in _WITH_WAITS or not waits:
        return shared
    if waits > gain / 2:
        return None
    low, high = (max((end or 0) - waits, 0) for end in (shared.gain_low_ns, shared.gain_high_ns))
    text = f"without {duration_text(waits)} that the ranks wait because of the finding {slow.cause}"
    told = Evidence(text=text, value=float(waits), unit="ns")
    evidence = (*shared.evidence, told)
    return msgspec.structs.replace(shared, gain_ns=gain - waits, gain_low_ns=low, gain_high_ns=high, evidence=evidence)


def without_bubbles(shared: Finding, transit: float | None) -> Finding | None:
    """Return communication that nothing hides as far as data move; None if that is little.

    Args:
        shared: What the ranks share.
        transit: For how long the median rank moves data in a step, ns: the rest of its communication it waits for other
            ranks, in a pipeline for other stages. None if unknown.
    """
    high = shared.gain_high_ns or 0
    if shared.cause not in _WITH_WAITS or transit is None or transit >= high:
        return shared
    if transit < _TOLD * (shared.step_ns or 0):
        return None
    gain, low = (round((value or 0) * transit / high) for value in (shared.gain_ns, shared.gain_low_ns))
    text = f"data move for {duration_text(transit)} a step; the rest of it the ranks wait for each other"
    told = Evidence(text=text, value=transit, unit="ns", result="cluster_communication")
    evidence = (*shared.evidence, told)
    return msgspec.structs.replace(
        shared, gain_ns=gain, gain_low_ns=low, gain_high_ns=round(transit), evidence=evidence
    )


def _most_of(slow: Finding, own: Sequence[Finding]) -> Finding | None:
    least = (slow.added_ns or 0) / 2
    mine = [one for one in own if one.ranks == slow.ranks and (one.gain_ns or 0) >= least]
    return mine[0] if mine and slow.added_ns else None


def _differs(one: Finding, reason: Finding) -> bool:
    return (one.cause, one.ranks) != (reason.cause, reason.ranks)


def usual_and_slow(ranks: Sequence[RankRun], named: Sequence[int]) -> tuple[list[RankRun], list[RankRun]]:
    """Return the ranks that speak for all, and those that findings name: of a few ranks all, and none.

    Of a rank of which only the summary was made, nothing else is read.
    """
    whole = [rank for rank in ranks if not rank.reduced]
    if len(ranks) <= _FEW_RANKS:
        return whole, []
    by_number = {rank.directory.rank: rank for rank in whole}
    others = [rank for number, rank in by_number.items() if number not in named]
    usual = [others[place * (len(others) - 1) // (_USUAL - 1)] for place in range(min(_USUAL, len(others)))]
    slow = [by_number[number] for number in [*dict.fromkeys(named)][:_NAMED] if number in by_number]
    return [*filter(_is_small, usual)], [*filter(_is_small, slow)]


def _is_small(rank: RankRun) -> bool:
    try:
        return sum(path.stat().st_size for capture in rank.captures for path in capture.all) <= _LARGE
    except (InputError, OSError):
        return False  # the job's findings name it


def _findings_of(rank: RankRun) -> list[Finding]:
    """Return the findings of one rank, of the steps as the job has them: as its device works for them."""
    tables = rank.shown if rank.manifest.get("source") == "import" else None
    settled = None if tables is None else steps_of_device(tables)
    return rank_findings(rank) if settled is tables or settled is None else found_in(Observed(settled, rank.manifest))


def _of_ranks(
    usual: Sequence[RankRun], slow: Sequence[RankRun], *, sample: bool
) -> tuple[list[Finding], list[Finding]]:
    """Return the findings that at least half of the usual ranks have, and those of each rank by itself.

    Of each cause that is shared, the one of the median gain is returned.
    """
    own = []
    by_cause: dict[str, list[tuple[int, Finding]]] = defaultdict(list)
    for rank in (*usual, *slow):
        try:
            found = _findings_of(rank)
        except InputError:
            continue  # the job's findings name it
        for finding in {finding.cause: finding for finding in reversed(found)}.values():
            own.append(msgspec.structs.replace(finding, ranks=(rank.rank,)))
            if rank in usual:
                by_cause[finding.cause].append((rank.rank, finding))
    shared = []
    for alike in by_cause.values():
        if 2 * len(alike) >= len(usual):
            gain = statistics.median_low(finding.gain_ns or 0 for _, finding in alike)
            chosen = next(finding for _, finding in alike if (finding.gain_ns or 0) == gain)
            some = tuple(rank for rank, _ in alike)
            if sample:
                said = f"seen on rank {', '.join(map(str, some))} of the {len(usual)} usual ones that were read whole"
                chosen = msgspec.structs.replace(chosen, evidence=(*chosen.evidence, Evidence(text=said)))
            shared.append(msgspec.structs.replace(chosen, ranks=() if len(alike) == len(usual) else some))
    return shared, own
