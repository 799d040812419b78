"""Ranks of one host have one clock: it joins ranks that no collective joins, and those without any."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyse.quantities import duration_text
from stepscope.cluster.clock.line_fit import Flags, Floats, Integers, Lines
from stepscope.cluster.job_tables import Frame

#: How far clocks of one host may lie apart, in ns, where no collective compares any: those of processes, and those of
#: devices, whose times CUPTI converts for each process.
_PROCESSES, _DEVICES = 20_000.0, 500_000.0
#: Estimates of one clock seem to differ by chance up to so many times their variance.
_BY_CHANCE = 2.0


@dataclass(frozen=True)
class Estimates:
    """The clocks so far, by index of the rank; those of one component are against one of its ranks.

    Attributes:
        base: A time of each rank, in ns, at which ``offset`` holds.
        offset: Job time less local time, in ns.
        drift: Rate of the job's clock against this one, less 1; 0 where ``drift_known`` is false.
        drift_known: Whether the drift is known.
        uncertainty: Most that the offset is wrong while the rank was recorded, in ns.
        component: Ranks with the same number are compared with each other.
        reference: For each rank, the rank whose clock is that of its component.
        moved: By how much the clock of each rank moved against others while it recorded, in ns; 0 where it did not.
        reasons: Why the clock is not known; empty where it is.
    """

    base: Integers
    offset: Floats
    drift: Floats
    drift_known: Flags
    uncertainty: Floats
    component: Integers
    reference: Integers
    moved: Floats
    reasons: list[str]

    def at(self, rank: int, time: int) -> float:
        """Return the offset of a rank at one of its times, in ns."""
        return float(self.offset[rank] + self.drift[rank] * float(time - self.base[rank]))


def drawn_together(names: Frame, lines: Lines, base: Integers) -> Lines:
    """Return the lines with those of each host drawn together, as far as chance explains how they differ.

    Args:
        names: The ranks, with their hosts.
        lines: The line of each rank.
        base: For each rank, the time in ns that its times are counted from.
    """
    host, reference = hosts(names), lines.reference
    pair = np.unique(np.stack([host, lines.component]), axis=1, return_inverse=True)[1].reshape(-1)
    clock = np.where((host >= 0) & (lines.count > 0), pair, -1)
    at = base + np.round(lines.centre).astype(np.int64)
    start = (base[reference] - base).astype(float)
    away = np.zeros(len(at))
    for one in np.unique(clock[clock >= 0]):
        same = clock == one
        away[same] = int(np.median(at[same])) - at[same]
        shown = (lines.offset + start + lines.drift * away)[same]
        if len(shown) < 2 or np.ptp(shown) > _DEVICES:
            clock[same] = -1
    away[clock < 0] = 0.0
    # Of how a rank differs from the reference, half is by chance of the reference.
    offset, less = _drawn(lines.offset + start + lines.drift * away, lines.deviation**2 / 2, clock)
    drift, less_drift = _drawn(lines.drift, lines.drift_deviation**2 / 2, clock)
    # The clock of the reference stays that of the job.
    since = (at - at[reference]) + away - away[reference] + offset - offset[reference]
    offset = offset - offset[reference] - drift[reference] * since
    drift = drift - drift[reference]
    left = 1 - less / 2 - less[reference] / 2
    left_drift = 1 - less_drift / 2 - less_drift[reference] / 2
    return replace(
        lines,
        offset=np.where(reference == np.arange(len(at)), 0.0, offset - start - drift * away),
        drift=drift,
        deviation=lines.deviation * np.sqrt(left),
        end_deviation=lines.end_deviation * np.sqrt(np.maximum(left, left_drift)),
        drift_deviation=lines.drift_deviation * np.sqrt(left_drift),
    )


def _drawn(values: Floats, variance: Floats, clock: Integers) -> tuple[Floats, Floats]:
    """Return the values drawn to the mean of their clock (−1: of no other), and which part of their variance goes."""
    drawn, less = values.copy(), np.zeros(len(values))
    members = np.flatnonzero(clock >= 0)
    if not len(members):
        return drawn, less
    number, size = np.unique(clock[members], return_inverse=True, return_counts=True)[1:]
    own, weight = variance[members], 1 / variance[members]
    whole = np.bincount(number, weight)[number]
    middle = np.bincount(number, weight * values[members])[number] / whole
    apart, free = values[members] - middle, 1 - 1 / size[number]
    between = max(float((apart**2 - _BY_CHANCE * own * free).sum() / free.sum()), 0.0)
    kept = between / (between + own)
    drawn[members] = middle + kept * apart
    less[members] = (1 - kept) * (1 - weight / whole)
    return drawn, less


def joined(names: Frame, found: Estimates) -> Estimates:
    """Join to the largest component what shares a host with it, and give all others a reason."""
    good = np.array([not reason for reason in found.reasons], bool)
    if not good.any():
        return found
    host = hosts(names)
    spread = _spread(names, found, host, good)
    found = _pooled(found, host, spread, good)
    numbers, sizes = np.unique(found.component[good], return_counts=True)
    main = good & (found.component == numbers[int(np.argmax(sizes))])
    waiting = [good & (found.component == number) for number in numbers if number != numbers[int(np.argmax(sizes))]]
    while joinable := [members for members in waiting if np.isin(host[members], host[main & (host >= 0)]).any()]:
        found = _moved(found, joinable[0], main, host, spread)
        main = main | joinable[0]
        waiting = [members for members in waiting if not (members & main).any()]
    return replace(found, reasons=_reasons(found, good, main))


def hosts(names: Frame) -> Integers:
    """Return the number of the host of each rank; −1 where the rank has a clock of its own, or none is named."""
    text = names["host"].fill_null("")
    named = names["wall_clock"].fill_null(value=True) & (text != "")
    return np.where(named.to_numpy(), text.rank("dense").to_numpy().astype(np.int64), -1)


def _spread(names: Frame, found: Estimates, host: Integers, good: Flags) -> Floats:
    """Return how far clocks of one host may lie apart; hosts whose ranks do not have one clock lose their number."""
    spread = np.where(names["device"].fill_null("cpu").eq("cpu").to_numpy(), _PROCESSES, _DEVICES)
    seen: list[float] = []
    for number in np.unique(host[host >= 0]):
        everyone = np.flatnonzero(host == number)
        for component in np.unique(found.component[everyone]):
            same = everyone[good[everyone] & (found.component[everyone] == component)]
            if len(same) > 1:
                time = int(np.median(found.base[same]))
                apart = float(np.ptp([found.at(int(rank), time) for rank in same]))
                allowed = float(found.uncertainty[same].max())
                if apart > spread[same].max() + 2 * allowed:
                    host[everyone] = -1
                seen.append(apart + allowed)
        if not good[everyone].all():  # one was set: so were, perhaps, the others
            host[everyone] = -1
    return np.minimum(spread, max(seen)) if seen else spread


def _pooled(found: Estimates, host: Integers, spread: Floats, good: Flags) -> Estimates:
    """Return the estimates with the clock of the host for ranks whose own collectives say less."""
    offset, drift, known = found.offset.copy(), found.drift.copy(), found.drift_known.copy()
    uncertainty = found.uncertainty.copy()
    for number in np.unique(host[host >= 0]):
        everyone = np.flatnonzero(good & (host == number))
        for component in np.unique(found.component[everyone]):
            same = everyone[found.component[everyone] == component]
            best = int(same[np.argmin(found.uncertainty[same])])
            error = float(found.uncertainty[best])
            if (reference := int(found.reference[same[0]])) in same:  # the clock of this host is that of the job
                best, error = reference, 0.0
            for rank in same[error + spread[same] < found.uncertainty[same]]:
                offset[rank] = found.at(best, int(found.base[rank]))
                drift[rank], known[rank] = found.drift[best], found.drift_known[best]
                uncertainty[rank] = error + spread[rank]
    return replace(found, offset=offset, drift=drift, drift_known=known, uncertainty=uncertainty)


def _moved(found: Estimates, members: Flags, main: Flags, host: Integers, spread: Floats) -> Estimates:
    """Return the estimates with a component moved so that its ranks on hosts of ``main`` have the clocks of these."""
    offset, drift, known = found.offset.copy(), found.drift.copy(), found.drift_known.copy()
    moves, errors = [], []
    for rank in np.flatnonzero(members & np.isin(host, host[main & (host >= 0)])):
        there = np.flatnonzero(main & (host == host[rank]))
        time = int(found.base[rank])
        moves.append(float(np.median([found.at(int(one), time) for one in there])) - float(found.offset[rank]))
        errors.append(float(found.uncertainty[there].min() + spread[rank]))
        drifting = there[known[there]]
        if not known[rank] and len(drifting):
            drift[rank], known[rank] = float(np.median(drift[drifting])), True
    offset[members] += float(np.median(moves))
    uncertainty = found.uncertainty + np.where(members, min(errors) + float(np.ptp(moves)) / 2, 0.0)
    return replace(found, offset=offset, drift=drift, drift_known=known, uncertainty=uncertainty)


def _reasons(found: Estimates, good: Flags, main: Flags) -> list[str]:
    """Say of every rank outside ``main`` why it has no clock."""
    reasons = list(found.reasons)
    alone = int(main.sum()) == 1 and len(reasons) > 1
    for rank in np.flatnonzero(good & ~main | (good & alone)):
        same = good & (found.component == found.component[rank])
        if moved := float(found.moved[same].max()):
            reasons[rank] = (
                "its clock, or that of the job, was set or did not run evenly while it recorded: "
                f"they moved apart by {duration_text(moved)} or more"
            )
            continue
        others = "the ranks that have the clock of the job" if same.sum() > 1 else "another rank"
        reasons[rank] = f"it shares no collective with {others}"
    return reasons
