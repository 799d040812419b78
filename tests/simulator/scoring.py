"""Whether findings of a job name its fault, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from tests.simulator.host_clocks import HostClock

FindingDict: TypeAlias = Mapping[str, Any]

#: Causes that blame something of the job. A healthy job has none of them; advice such as “small collectives” may stay.
BLAMES = frozenset(
    {
        "slow-rank", "host-bound-rank", "data-wait-rank", "slow-link", "slow-stage", "missing-rank", "duplicate-rank",
        "unequal-steps", "unreadable-rank", "hung-collective", "world-size", "different-code", "clock-uncalibrated",
    }
)  # fmt: skip
#: Faults that are named by one of their ranks, or by all: whoever looks at one end of a link finds it.
_BY_ANY_RANK = frozenset({"link", "network", "stage", "jump"})


@dataclass(frozen=True)
class Verdict:
    """How the findings of one job compare with its truth.

    Attributes:
        seed: Seed of the job.
        kind: Kind of the job.
        fault: Sort of its fault; empty for none.
        cause: Whether the first finding has a cause that names the fault; for a healthy job, whether nothing is blamed.
        named: Whether it names the rank, link or stage as well.
        said: What was found, in short.
        gain_error: Stated gain over the true one, less 1; None if either is not known.
        added_error: The same of the added time.
    """

    seed: int
    kind: str
    fault: str
    cause: bool
    named: bool
    said: str
    gain_error: float | None = None
    added_error: float | None = None


def judge(truth: Mapping[str, Any], findings: Sequence[FindingDict]) -> Verdict:
    """Compare the findings of a job, first ones first, with the truth about it."""
    fault = truth["fault"]
    shape = truth["shape"]
    said = "; ".join(_short(finding) for finding in findings[:3]) or "nothing"
    if fault is None or not fault["causes"]:
        quiet = not any(finding["cause"] in BLAMES for finding in findings)
        return Verdict(shape["seed"], shape["kind"], fault["sort"] if fault else "", quiet, quiet, said)
    first: FindingDict = findings[0] if findings else {"cause": ""}
    causes = list(fault["causes"])
    if fault["sort"] in ("operator", "module", "clocks", "process") and _alone_in_stage(truth):
        # The rank is its stage.
        causes.append("slow-stage")
    if fault["sort"] == "stage" and _alone_in_stage(truth):
        causes.append("slow-rank")
    cause = first["cause"] in causes
    named = cause and _concerns(fault, first)
    return Verdict(
        shape["seed"],
        shape["kind"],
        fault["sort"],
        cause,
        named,
        said,
        _error(first.get("gain_ns"), fault["gain_ns"]) if named else None,
        # What a slow host takes longer is hidden behind the device at first: peers show another number.
        _error(first.get("added_ns"), fault["added_ns"]) if named and fault["sort"] != "host" else None,
    )


def _alone_in_stage(truth: Mapping[str, Any]) -> bool:
    shape = truth["shape"]
    return bool(shape["pipeline"] > 1 and shape["ranks"] == shape["pipeline"])


def _concerns(fault: Mapping[str, Any], finding: FindingDict) -> bool:
    """Return whether a finding is about the ranks, the link or the stage of a fault, and about no others."""
    ranks, wanted = set(finding.get("ranks") or ()), set(fault["ranks"])
    if fault["sort"] == "link":
        return (finding.get("link") and set(finding["link"]) == wanted) or ranks == wanted
    if fault["sort"] == "stage":
        return finding.get("stage") == fault["stage"] or bool(ranks & wanted and ranks <= wanted)
    if fault["sort"] in _BY_ANY_RANK:
        named = ranks | set(finding.get("link") or ())
        return bool(named & wanted and named <= wanted)
    return wanted <= ranks and len(ranks) <= max(2, len(wanted))


def _error(said: float | None, true: float | None) -> float | None:
    return said / true - 1 if said is not None and true else None


def _short(finding: FindingDict) -> str:
    where = finding.get("link") or finding.get("ranks") or finding.get("stage")
    return f"{finding['cause']} {list(where) if isinstance(where, list | tuple) else where or ''}".strip()


@dataclass(frozen=True)
class ClockError:
    """How wrong the clocks of a job's ranks are after alignment.

    Attributes:
        to_reference: The largest error of each rank whose clock is stated, against the reference, ns.
        to_median: The same against the median of all ranks.
        uncertainties: What is stated of it, ns.
        unstated: How many ranks have no stated clock.
        jitter_ns: By how much ranks leave a collective apart.
    """

    to_reference: tuple[float, ...]
    to_median: tuple[float, ...]
    uncertainties: tuple[float, ...]
    unstated: int
    jitter_ns: float


def true_clocks(truth: Mapping[str, Any]) -> list[HostClock]:
    """Return the clock of each rank."""
    return [
        HostClock(rank["offset_ns"], rank["drift_ppm"], rank["jump_at_ns"] or np.inf, rank["jump_ns"])
        for rank in truth["ranks"]
    ]


def report(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the shares of faults that are named, in all and by sort, and of healthy jobs that are blamed."""
    lines = []
    verdicts = list(verdicts)
    faulty = [verdict for verdict in verdicts if verdict.fault not in ("", "hiccup")]
    healthy = [verdict for verdict in verdicts if verdict.fault in ("", "hiccup")]
    if faulty:
        lines.append(_share("faults named with rank and cause", [verdict.named for verdict in faulty]))
        sorts = sorted({verdict.fault for verdict in faulty})
        lines += ["  " + _share(sort, [verdict.named for verdict in faulty if verdict.fault == sort]) for sort in sorts]
        for name, errors in (
            ("gain", [verdict.gain_error for verdict in faulty]),
            ("added time", [verdict.added_error for verdict in faulty]),
        ):
            known = [abs(error) for error in errors if error is not None]
            if known:
                lines.append(f"{name}: median error {median(known):.0%}, worst {max(known):.0%} of {len(known)}")
    if healthy:
        lines.append(_share("healthy jobs without blame", [verdict.named for verdict in healthy]))
    lines += [
        f"  seed {verdict.seed} {verdict.kind}: {verdict.fault or 'healthy'}, but found: {verdict.said}"
        for verdict in verdicts
        if not verdict.named
    ]
    return lines


def report_clocks(clocks: Iterable[ClockError]) -> list[str]:
    """Return how many ranks have a clock error within the stated uncertainty, and these errors."""
    clocks = list(clocks)
    stated = np.concatenate([np.array(clock.uncertainties) for clock in clocks])
    unstated = sum(clock.unstated for clock in clocks)
    lines = [f"clocks: stated of {len(stated)} ranks, not of {unstated}"]
    jitter = np.concatenate([np.full(len(clock.uncertainties), clock.jitter_ns) for clock in clocks])
    for name in ("reference", "median") if len(stated) else ():
        errors = np.concatenate([np.array(getattr(clock, f"to_{name}")) for clock in clocks])
        lines.append(
            f"  against the {name}: {np.mean(errors <= stated):.2%} within what is stated; error "
            f"{np.median(errors):.0f} ns, largest {np.max(errors):.0f} ns, or {np.max(errors / jitter):.1f} jitters"
        )
        small = [max(getattr(clock, f"to_{name}")) <= clock.jitter_ns for clock in clocks if clock.uncertainties]
        lines.append(f"  {_share('jobs in which no clock is more wrong than the jitter', small)}")
    return lines


def _share(name: str, hits: Sequence[bool]) -> str:
    return f"{name}: {sum(hits)} of {len(hits)} ({sum(hits) / len(hits):.0%})"
