"""What does not fit in a job, as findings: without a gain, and before all others."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.cluster.misfits import Misfit

#: Cause → what to do, and the command that shows whether it held.
_REMEDIES: dict[str, tuple[str, str]] = {
    "hung-collective": (
        "Look at what the named ranks do instead of calling it: `py-spy dump --pid` of them, or their own log. "
        "Every rank of a group must call the same collectives in the same order, also in branches that depend on data.",
        "stepscope check RUN",
    ),
    "unreadable-rank": (
        "Copy the capture again, or record it again; the other ranks are analysed without it.",
        "stepscope check RUN",
    ),
    "missing-rank": (
        "Put the captures of all ranks in one directory. What these ranks do, and who waits for them, is not in the "
        "results.",
        "stepscope check RUN",
    ),
    "duplicate-rank": (
        "Take away the capture that belongs to another job or another attempt: results count one capture of a rank.",
        "stepscope check RUN",
    ),
    "world-size": (
        "These are captures of different jobs, or of a job that was resized: put those of one size in one directory.",
        "stepscope check RUN",
    ),
    "unequal-steps": (
        "Record the same steps on all ranks; steps that only some ranks have are compared with none.",
        "stepscope check RUN",
    ),
    "different-code": (
        "Install the same versions on all machines, and start all ranks from the same commit.",
        "stepscope check RUN",
    ),
    "clock-uncalibrated": (
        "Record steps in which these ranks take part in collectives with others; on one machine, or under PTP, wall "
        "clocks already agree. Until then durations are compared, arrivals are not.",
        "stepscope check RUN",
    ),
}


def misfit_findings(found: Iterable[Misfit]) -> list[Finding]:
    """Return a finding for each misfit, in their order."""
    return [_finding(misfit) for misfit in found]


def _finding(misfit: Misfit) -> Finding:
    remedy, check = _REMEDIES[misfit.cause]
    rank = misfit.ranks[0] if len(misfit.ranks) == 1 else None
    return Finding(
        cause=misfit.cause,
        title=misfit.sentence,
        confidence=Confidence.MEASURED if misfit.certain else Confidence.LIKELY,
        evidence=tuple(Evidence(text=text, rank=rank) for text in misfit.details or (misfit.sentence,)),
        remedy=remedy,
        check=check,
        ranks=misfit.ranks,
    )
