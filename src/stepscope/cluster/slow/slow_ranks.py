"""Which ranks take longer than their peers, how much, and what the job loses by it.

Peers are the ranks with the same role: those of one stage of a pipeline, or those that run the same kernels.
The amount is that of own times (:mod:`stepscope.cluster.slow.own_time`), which no clock can get wrong; the arrivals
on the job's clock must agree with it, where they are known.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.slow.outliers import (
    MAD_TO_SIGMA,
    PRIOR_WEIGHT,
    Flags,
    Floats,
    happens_by_chance,
    lower_median,
    student_quantile,
    too_large,
)
from stepscope.cluster.slow.own_time import PARTS, OwnTime, own_time
from stepscope.cluster.slow.own_work import OwnWork

#: Three hiccups or more are rare in themselves; that one of the ranks has them all counts as its habit if chance alone
#: would do that in less than this share of such jobs.
_BY_CHANCE = 0.02
#: How much the own times of healthy ranks differ, as a standard deviation: chips, and hosts that compute themselves.
DEVICE_SPREAD, HOST_SPREAD = 0.01, 0.02
#: As many ranks that counts for: jobs on hosts differ more in how much their ranks do.
_DEVICE_WEIGHT, _HOST_WEIGHT = PRIOR_WEIGHT, 3
#: Probability that a healthy job has a slow rank by its own time, and by each of the parts that are tested besides.
_OWN_FALSE_ALARMS, FALSE_ALARMS = 0.01, 0.003
#: A rank that costs the job less than this share of its step is not worth a word.
WORTH = 0.01
#: A step is a hiccup if it is this many standard deviations, and this share of the step, longer than the others.
_HICCUP_SIGMAS, _HICCUP_SHARE = 6.0, 0.02
#: Parts that are compared for themselves, too, and how much they differ between healthy ranks.
_TESTED, _PART_SPREAD = ("data_wait", "host", "garbage"), 0.1
#: Calls take longer by this part of the time that the rank waits for a core, or less: what ran there used the caches.
_AFTERMATH = 0.03
#: But no more than this part of what the rank computes: it gets a core for some ms, and fills the caches once in them.
_COLD = 0.1
#: How uncertain the own time of such a rank is: it also waits for a core when a collective wakes it.
_UNCERTAIN = 4.0
#: A rank waits for its cores, and not for those of a machine that is busy for all, if it waits this much longer.
_MUCH_LONGER = 1.0
#: In most steps a part is longer by at least this share of what it is in the mean of all.
_LASTING = 0.3
#: Before and after a rank becomes slower there are so many steps or more.
_LATER = 3
#: Operations in which nobody waits for all others, so that who comes last says nothing.
_PAIRS = ("send", "recv", "sendrecv")
#: Two-sided 95 % of normal numbers, and what a median needs more steps than a mean.
_NORMAL_95, _MEDIAN_COST = 1.96, 1.2533

_SCHEMA = {
    "rank": pl.Int32(),
    "role": pl.Int64(),
    "peers": pl.Int64(),
    "steps": pl.Int64(),
    "step_ns": pl.Int64(),
    "own_ns": pl.Int64(),
    "added_ns": pl.Int64(),
    "added_low_ns": pl.Int64(),
    "added_high_ns": pl.Int64(),
    "peers_wait_ns": pl.Int64(),
    "computing_ns": pl.Int64(),
    "data_wait_ns": pl.Int64(),
    "host_ns": pl.Int64(),
    "garbage_ns": pl.Int64(),
    "delay_ns": pl.Int64(),
    "hiccups": pl.List(pl.Int64()),
    "recurs": pl.Boolean(),
    "slow": pl.Boolean(),
    "disturbed": pl.Boolean(),
    "delayed": pl.Boolean(),
}


@dataclass(frozen=True)
class _Spread:
    """What is known of a job before it is looked at.

    Attributes:
        share: How much the own times of healthy ranks differ, as a standard deviation.
        weight: As many ranks that counts for.
        ranks: How many ranks the job has: a hiccup hits any of them.
    """

    share: float
    weight: int
    ranks: int


@dataclass(frozen=True)
class _Compared:
    """The ranks of a role, compared.

    Attributes:
        times: Their times.
        added: Their own time above that of the peers that are not slow, a step, without hiccups.
        error: Half of its 95 % interval.
        hiccups: Which steps are one.
        recurs: Whether the hiccups are so many that they are the rank's habit.
        slow: Whether the rank is slow.
    """

    times: OwnTime
    added: Floats
    error: Floats
    hiccups: Flags
    recurs: Flags
    slow: Flags


def roles(tables: JobTables, stages: pl.DataFrame | None = None) -> dict[int, int]:
    """Return the role of every rank that has steps: its stage; without stages, its code, if no rank's is its own.

    Args:
        tables: The tables of the job.
        stages: Columns ``rank`` and ``stage``; None or no rows if the job has no pipeline.
    """
    ranks = tables.steps["rank"].unique().sort().to_list()
    if stages is not None and not stages.is_empty():
        by_rank = dict(stages.select("rank", "stage").drop_nulls().rows())
        if len(set(by_rank.values())) > 1:
            return {rank: int(by_rank.get(rank, -1)) for rank in ranks}
    code = dict(tables.ranks.select("rank", "code").rows())
    codes = [code.get(rank) for rank in ranks]
    if None in codes or 1 in map(codes.count, codes):
        return dict.fromkeys(ranks, 0)
    numbers = {one: number for number, one in enumerate(dict.fromkeys(codes))}
    return {rank: numbers[one] for rank, one in zip(ranks, codes, strict=True)}


def slow_ranks(tables: JobTables, role_of: dict[int, int], works: list[OwnWork]) -> pl.DataFrame:
    """Return one row for each rank with steps: what it takes longer than its peers, in which part, and if it is slow.

    Args:
        tables: The tables of the job.
        role_of: The role of each rank.
        works: The work of the ranks (:func:`stepscope.cluster.slow.own_work.work_by_role`).
    """
    rows: list[dict[str, Any]] = []
    for role, whole in _by_role(tables, role_of):
        known = (DEVICE_SPREAD, _DEVICE_WEIGHT) if _on_device(tables, whole.ranks) else (HOST_SPREAD, _HOST_WEIGHT)
        spread = _Spread(*known, len(role_of))
        times, delayed = _comparable(tables, whole), _delayed(tables, whole)
        found = _rows(_compared(times, whole, works, delayed, spread), role, whole)
        if delayed.any() and times.queued.any():
            with_delay = _compared(times.with_delay, whole.with_delay, works, delayed, spread)
            late = _rows(with_delay, role, whole)
            found = [
                with_ if is_ and not _by_itself(own, with_) else own
                for own, with_, is_ in zip(found, late, delayed, strict=True)
            ]
        rows += [{**row, "delayed": bool(is_)} for row, is_ in zip(found, delayed, strict=True)]
    return pl.DataFrame(rows, schema=_SCHEMA).sort("rank")


def _by_itself(own: dict[str, Any], with_delay: dict[str, Any]) -> bool:
    """Return whether a rank that waits for its cores takes longer by its own work than by that wait.

    A thread that sleeps waits for a core once it is woken, so that a part of this wait looks like one for data.
    """
    delay = (with_delay["delay_ns"] or 0) if with_delay["slow"] else 0
    return bool(own["slow"]) and (own["added_ns"] or 0) >= delay


def _delayed(tables: JobTables, times: OwnTime) -> Flags:
    """Return who waits for a core much longer than its peers, on cores that none of these may use.

    Which of the ranks that share cores waits for them is the scheduler's choice: it says something of all of them.
    """
    delay = times.parts["delay"]
    if np.isnan(delay).all() or len(delay) < 2:
        return np.zeros(len(delay), dtype=np.bool_)
    usual = lower_median(delay)
    others = np.array([_median(np.delete(usual, row)) for row in range(len(usual))])
    found: Flags = (unusual_part(delay) > 0) & (usual > (1 + _MUCH_LONGER) * others)
    known = tables.ranks.filter(pl.col("cores").is_not_null(), pl.col("fault").is_null()).unique("rank")
    where = {rank: (host, {*cores.split(",")}) for rank, host, cores in known.select("rank", "host", "cores").rows()}
    longer = found.copy()
    for row in np.flatnonzero(longer).tolist():
        host, cores = where.get(times.ranks[row], (None, set()))
        there = [where.get(rank, (None, set())) for rank in times.ranks]
        sharing = [host == other and bool(cores & theirs) for other, theirs in there]
        found[row] = bool(longer[np.array(sharing, dtype=np.bool_)].all())
    return found


def _by_role(tables: JobTables, role_of: dict[int, int]) -> Iterator[tuple[int, OwnTime]]:
    on_host = tables.ranks.filter(pl.col("device") == "cpu")["rank"].to_list()
    times = own_time(tables.steps, on_host)
    for role in sorted(set(role_of.values())):
        members = [row for row, rank in enumerate(times.ranks) if role_of.get(rank) == role]
        if members:
            yield role, times.only(members)


def _on_device(tables: JobTables, ranks: list[int]) -> bool:
    return not tables.ranks.filter(pl.col("rank").is_in(ranks) & (pl.col("device") != "cpu")).is_empty()


def _comparable(tables: JobTables, whole: OwnTime) -> OwnTime:
    """Return the times of steps; their means where the host runs ahead of the device."""
    return whole.averaged() if whole.blurred and _on_device(tables, whole.ranks) else whole


def _compared(times: OwnTime, whole: OwnTime, works: list[OwnWork], delayed: Flags, spread: _Spread) -> _Compared:
    computing = {rank: amount for work in works for rank, amount in work.unusual().items()}
    working = {rank: amount for work in works for rank, amount in work.excess().items()}
    own = times.own
    slow = np.zeros(len(own), dtype=np.bool_)
    if len(own) < 2 or np.isnan(own).all():
        nothing = np.full(len(own), np.nan)
        return _Compared(times, nothing, nothing, own > np.inf, slow, slow)
    typical, step = float(_median(own)), float(_median(times.length))
    excess = own - _median(own, axis=0)
    usual, noise, error = _usual(excess)
    hiccups = excess - usual[:, None] > max(_HICCUP_SIGMAS * noise, _HICCUP_SHARE * typical)
    recurs = _recurring(hiccups, spread.ranks)
    aftermath = min(_AFTERMATH * float(np.nanmax(lower_median(times.queued), initial=0.0)), _COLD * typical)
    healthy = _of_healthy(own, error)
    sigma = float(np.linalg.norm([spread.share * typical, healthy, aftermath]))
    slow = too_large(usual, sigma, _OWN_FALSE_ALARMS, spread.weight) | recurs
    slow |= _later(excess, max(_HICCUP_SHARE * typical, _HICCUP_SIGMAS * aftermath))
    named = np.array([computing.get(rank, 0.0) for rank in times.ranks])
    for part in _TESTED:
        named = np.fmax(named, unusual_part(times.parts[part]))
    if not times.queued.any():
        named = np.fmax(named, np.where(delayed, unusual_part(times.parts["delay"]), 0.0))
    slow |= (named > max(2 * healthy, WORTH * step, _HICCUP_SIGMAS * aftermath)) & (
        _above(usual) > named / 2 - _UNCERTAIN * aftermath
    )
    if whole is not times:
        lasts, comes_again = _persists(times, whole, working)
        slow &= lasts
        recurs |= slow & comes_again
    slow &= (~np.isnan(whole.own)).sum(axis=1) > 1
    counted = np.where(hiccups & ~recurs[:, None], np.nan, own - _median(own[~slow], axis=0))
    added = np.where(recurs, _mean(counted), _middle(counted))
    return _Compared(times, added, np.full(len(own), _NORMAL_95 * error), hiccups, recurs, slow)


def _usual(excess: Floats) -> tuple[Floats, float, float]:
    """Return the usual excess of each rank, how much a step differs from it, and the standard error of the first."""
    usual = lower_median(excess)
    if len(usual) == 2 and not np.isnan(usual).any():
        # What one of a pair takes longer in one step, the other takes less: they differ by one number.
        slower = int(np.argmax(usual))
        usual[1 - slower] = -usual[slower]
    noise = _noise(excess, usual)
    return usual, noise, _MEDIAN_COST * noise / excess.shape[1] ** 0.5


def _of_healthy(times: Floats, error: float) -> float:
    """Return the standard error of what a rank takes more than its peers, if it varies as they do.

    What the ranks of a pair differ by varies as the one does that varies most: what is usual, the faster one says.
    """
    if len(times) != 2 or times.shape[1] < 2:
        return error
    faster = times[[np.argmin(lower_median(times))]]
    alone = _noise(faster, lower_median(faster)) / 2**0.5
    return min(error, float(_MEDIAN_COST * alone / times.shape[1] ** 0.5))


def _later(excess: Floats, least: float) -> Flags:
    """Return who becomes slower than its peers while it is recorded: what it took before tells what it should take.

    Args:
        excess: What each rank takes longer than the median of all, by step.
        least: The least that counts.
    """
    found = np.zeros(len(excess), dtype=np.bool_)
    steps, splits = excess.shape[1], range(_LATER, excess.shape[1] - _LATER + 1)
    if len(excess) < 3 or not splits or np.isnan(excess).any():
        return found
    # A change in between moves few of the differences between one step and the next.
    changes = MAD_TO_SIGMA * np.median(np.abs(np.diff(excess, axis=1)), axis=1) / 2**0.5
    usual = float(np.median(changes))
    noise = np.sqrt((np.maximum(changes, usual) ** 2 + usual**2) / 2)
    quantile = student_quantile(1 - FALSE_ALARMS / (len(excess) * len(splits)), steps - 2)
    for split in splits:
        before, after = np.median(excess[:, :split], axis=1), np.median(excess[:, split:], axis=1)
        error = _MEDIAN_COST * noise * (1 / split + 1 / (steps - split)) ** 0.5
        more = after - before
        found |= (more > np.maximum(quantile * error, least)) & (after > more / 2)
    return found


def unusual_part(part: Floats) -> Floats:
    """Return what a part takes the ranks longer that take too long for it in most steps, else 0: rank by step, ns."""
    if np.isnan(part).all():
        return np.zeros(len(part))
    usual, _, error = _usual(part - _median(part, axis=0))
    sigma = float(np.hypot(_PART_SPREAD * _median(part), _of_healthy(part, error)))
    return np.where(too_large(usual, sigma, FALSE_ALARMS), _above(usual), 0.0)


def _above(usual: Floats) -> Floats:
    """Return what ranks take longer than their peers: of two, the peer's time is the smaller one, not the middle."""
    return usual - np.nanmin(usual) if len(usual) == 2 else usual


def _persists(times: OwnTime, whole: OwnTime, working: dict[int, float]) -> tuple[Flags, Flags]:
    """Return who takes longer in most steps, and whose computing does again and again: of means, one step may be all.

    What is left without the longest step and its neighbours counts: a pause may lie across their borders. Of computing,
    which one step may do for another, the median of the calls tells, too.
    """
    lasts, comes_again = np.zeros((2, len(times.ranks)), dtype=np.bool_)
    more = {part: times.parts[part] - _median(times.parts[part], axis=0) for part in PARTS}
    for row, rank in enumerate(times.ranks):
        part = max(PARTS, key=lambda name: np.nan_to_num(more[name][row, 0]))
        least = _LASTING * float(more[part][row, 0])
        by_step = whole.parts[part][row] - _median(whole.parts[part], axis=0)
        longest = int(np.nanargmax(by_step)) if not np.isnan(by_step).all() else 0
        rest = np.delete(by_step, range(max(longest - 1, 0), min(longest + 2, len(by_step))))
        rest = rest if len(rest) else np.sort(by_step)[:-1]
        lasts[row] = len(rest) > 0 and np.nanmean(rest) > least
        if part == "computing":
            always = working.get(rank, 0.0) > least
            comes_again[row] = lasts[row] and not always
            lasts[row] |= always
    return lasts, comes_again


def _noise(excess: Floats, usual: Floats) -> float:
    """Return how much a rank's step differs from its other steps, as a standard deviation, robustly over all ranks."""
    if excess.shape[1] < 2:
        return 0.0
    freedom = excess.shape[1] / (excess.shape[1] - 1)
    return float(MAD_TO_SIGMA * freedom**0.5 * _median(np.abs(excess - usual[:, None])))


def _recurring(hiccups: Flags, ranks: int) -> Flags:
    """Return whose hiccups are too many to hit it by chance among the job's ranks: a pause that the others lack."""
    total = int(hiccups.sum())
    times = hiccups.sum(axis=1)
    chance = {count: happens_by_chance(count, total, ranks) for count in set(times.tolist()) if count > 2}
    return np.array([chance.get(count, 1.0) < _BY_CHANCE for count in times.tolist()], dtype=np.bool_)


def _rows(compared: _Compared, role: int, whole: OwnTime) -> list[dict[str, Any]]:
    times, slow = compared.times, compared.slow
    usual = ~slow if not slow.all() else slow

    left_out = compared.hiccups & ~compared.recurs[:, None]

    def above_peers(matrix: Floats) -> Floats:
        counted = np.where(left_out, np.nan, matrix - _median(matrix[usual], axis=0))
        return np.where(compared.recurs, _mean(counted), _middle(counted))

    parts = {f"{name}_ns": above_peers(matrix) for name, matrix in times.parts.items()}
    waits = -above_peers(times.communication + times.queued)
    step_ns, own_ns = _median(times.length, axis=1), _median(times.own, axis=1)
    return [
        {
            "rank": rank,
            "role": role,
            "peers": len(times.ranks) - 1,
            "steps": int((~np.isnan(whole.own[row])).sum()),
            "step_ns": _integer(step_ns[row]),
            "own_ns": _integer(own_ns[row]),
            "added_ns": _integer(compared.added[row]),
            "added_low_ns": _integer(compared.added[row] - compared.error[row]),
            "added_high_ns": _integer(compared.added[row] + compared.error[row]),
            "peers_wait_ns": _integer(waits[row]),
            **{name: _integer(values[row]) for name, values in parts.items()},
            "hiccups": [step for step, there in zip(times.steps, compared.hiccups[row], strict=True) if there],
            "recurs": bool(compared.recurs[row]),
            "slow": bool(slow[row]),
            "disturbed": times.disturbed,
        }
        for row, rank in enumerate(times.ranks)
    ]


def gain(
    tables: JobTables, role_of: dict[int, int], ranks: set[int], *, with_delay: bool = False
) -> tuple[int, int, int] | None:
    """Return what the job's step saves if ``ranks`` are as fast as their slowest peer, ns, and its 95 % interval.

    It is the largest own time of a role above the largest without these ranks, as a mean over the steps; of several
    roles, that of the one that loses most. None if the ranks have no peers.

    Args:
        tables: The tables of the job.
        role_of: The role of each rank.
        ranks: Those that are to be faster.
        with_delay: Whether they no longer wait for a core, either.
    """
    best: tuple[int, int, int] | None = None
    for _, whole in _by_role(tables, role_of):
        members = _comparable(tables, whole.with_delay if with_delay else whole)
        others = np.array([rank not in ranks for rank in members.ranks])
        if others.all() or not others.any():
            continue
        saved = _largest(members.own) - _largest(members.own[others])
        saved = saved[~np.isnan(saved)]
        if not len(saved):
            continue
        # What the ranks usually cost does not contain a hiccup of one step.
        middle = float(np.mean(np.sort(saved)[:-1])) if len(saved) > 2 else float(np.min(saved))
        noise = MAD_TO_SIGMA * float(np.median(np.abs(saved - np.median(saved))))
        error = _NORMAL_95 * _MEDIAN_COST * noise / len(saved) ** 0.5
        found = (round(middle), max(0, round(middle - error)), round(middle + error))
        best = max(best or found, found)
    return best


def arrival_order(arrivals: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each rank whose clock is known: how late it comes, and how often last.

    Columns: ``rank``; ``late_ns``, what it comes later than the median member of its group, summed over the
    collectives of a step, the median over the steps; ``last``, collectives in which it is certainly the last;
    ``collectives``, those in which the last one is known.

    Args:
        arrivals: What :func:`stepscope.cluster.arrivals.arrivals` returns.
    """
    known = arrivals.filter(pl.col("lateness").is_not_null() & ~pl.col("operation").is_in(_PAIRS))
    met = known.with_columns(
        (pl.col("lateness") - pl.col("lateness").quantile(0.5, "lower").over("meeting")).alias("late"),
        pl.len().over("meeting").alias("members"),
    ).filter(pl.col("members") > 1)
    return (
        met.group_by("rank", "step")
        .agg(pl.col("late").sum(), pl.col("last").sum(), pl.col("last").count().alias("collectives"))
        .group_by("rank")
        .agg(pl.col("late").quantile(0.5, "lower").alias("late_ns"), pl.col("last", "collectives").sum())
        .sort("rank")
    )


def _largest(own: Floats) -> Floats:
    known: Floats = np.where(np.isnan(own), -np.inf, own).max(axis=0)
    known[np.isinf(known)] = np.nan
    return known


def _median(matrix: Floats, axis: int | None = None) -> Floats:
    """Return medians without NaN; NaN where nothing is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(matrix, axis=axis), dtype=np.float64)


def _mean(matrix: Floats) -> Floats:
    """Return the mean of each row without NaN; NaN where nothing is known."""
    known = ~np.isnan(matrix)
    mean: Floats = np.where(known, matrix, 0).sum(axis=1) / np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    return mean


def _middle(matrix: Floats) -> Floats:
    """Return the mean of the middle half of each row without NaN, which a few odd steps do not move."""
    ordered = np.sort(matrix, axis=1)  # NaN last
    known = (~np.isnan(matrix)).sum(axis=1)[:, None]
    place = np.arange(matrix.shape[1])[None, :]
    return _mean(np.where((place >= known // 4) & (place < known - known // 4), ordered, np.nan))


def _integer(value: float) -> int | None:
    return None if np.isnan(value) else round(float(value))
