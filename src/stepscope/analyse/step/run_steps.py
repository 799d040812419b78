"""All steps of the run, recorded or not: how long they took, and whether the recorded ones are typical.

Definitions: ``docs/definitions.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.step.long_steps import EXPLAINS, Outlier, longest_steps
from stepscope.analyse.units import timestamp_us, titled, us
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, shared, with_series

#: A step is disturbed if its thread waited for a core for at least this part of it.
DISTURBED = 0.1
#: Cores that other processes must use to count as the disturbance.
OTHERS_USE = 0.25
#: From so many steps on, the range is that of the middle 90 %, and outliers are looked for.
MANY = 20
#: A step is an outlier if it takes this many times the median, and is this many standard deviations (1.4826 median
#: absolute deviations) longer.
_LONG, _FAR = 1.5, 6.0
#: Other steps needed to say whether the recorded ones are typical, and blocks of them to know the noise.
_OTHERS, _BLOCKS = 10, 8
#: Relative difference of medians that is never worth a word, that of few steps, and that which no noise excuses.
_CLOSE, _LOOSE, _APART = 0.05, 0.15, 0.25
#: The host runs ahead if it is done with the recorded steps in this part of their time, and its median step is no
#: larger a part of its mean one, because in some step it waits for all that it asked for, or of a recorded one, because
#: it has not waited yet. Where it waits in each step, its steps last as long as what they compute.
_AHEAD = 0.5
#: Recording a call may cost so much, ns: benchmarks/overhead.py measured 1,320 (Kineto, all switches, tiny operators).
#: Steps that compute longer by no more than that a call are taken to differ by the recording, not by what they do.
_RECORDING_NS = 1_500
#: A page fault takes about a microsecond.
_FAULT_NS = 1_000
#: Columns of the picture of a run.
_WIDTH = 60

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Typical:
    """Whether the recorded steps are like the others.

    Attributes:
        typical: Whether the median of the recorded steps lies where medians of as many other steps lie.
        recorded_ns: Median of the recorded steps.
        others: How many other steps there are, without those of the warm-up.
        others_ns: Their median.
        cause: What differs: ``data wait``, ``run queue``, ``computing``, ``waiting``, ``page faults``, or ``recording``
            if the processor works no longer than recording its calls takes; empty if nothing is known.
        recorded_part: That part of the median recorded step: ns, or page faults. Of ``recording``, what it adds.
        others_part: That of the other steps. Of ``recording``, how many calls of a step are recorded.
    """

    typical: bool
    recorded_ns: float
    others: int
    others_ns: float
    cause: str = ""
    recorded_part: float = 0.0
    others_part: float = 0.0


@dataclass(frozen=True)
class RunSteps:
    """The steps of the whole run.

    Attributes:
        count: Number of steps.
        recorded: Number of them in the window.
        median_ns: Median duration; 0 without a step of known duration.
        low_ns: Shortest duration; from :data:`MANY` steps on, that which 5 % of the steps do not reach.
        high_ns: Longest duration; from :data:`MANY` steps on, that which 95 % of the steps do not exceed.
        picture: Longest step of each of at most 60 parts of the run, in ns.
        outliers: How many outliers there are.
        longest: The longest of them, at most three.
        typical: None where there are too few other steps to tell.
        disturbed: Recorded steps of which the thread waited for a core for a tenth or more.
        delay_share: Part of the recorded steps' time in which the thread waited for a core; None if unknown.
        other_cpu: Cores that other processes used while the window was open; None if unknown.
        ahead: Whether the host runs ahead of what it asks for, so that only the recorded steps have a known duration:
            those end when all that they asked for has been computed.
        ended: Whether the file of their times was closed; else later steps may be missing.
    """

    count: int
    recorded: int
    median_ns: float
    low_ns: float
    high_ns: float
    picture: tuple[int, ...]
    outliers: int
    longest: tuple[Outlier, ...]
    typical: Typical | None
    disturbed: int
    delay_share: float | None
    other_cpu: float | None
    ahead: bool = False
    ended: bool = True


NONE = RunSteps(0, 0, 0.0, 0.0, 0.0, (), 0, (), None, 0, None, None)


def step_times(tables: Tables) -> pl.DataFrame:
    """Return one row per step of the run: times in µs, what the kernel says of its thread, and what was in it."""
    rows, inside = steps_of_run(tables), _inside(tables)
    outlier = pl.lit(pl.Series(_outlying(_floats(rows, "dur"))))
    contains = [", ".join(inside.get(place, {})) or None for place in range(len(rows))]
    columns: dict[str, str | pl.Expr] = {
        "Step": "number", "Start(us)": timestamp_us("ts"), "Duration(us)": us("dur"), "Recorded": "recorded",
        "CPU Time(us)": us("cpu"), "Run Queue Delay(us)": us("delay"), "Waiting(us)": us("waiting"),
        "Data Wait(us)": us("data_wait"), "Minor Faults": "minor_faults", "Major Faults": "major_faults",
        "Voluntary Switches": "voluntary_switches", "Involuntary Switches": "involuntary_switches",
        "Contains": pl.lit(pl.Series("contains", contains, pl.String)), "Outlier": outlier,
        "Disturbed": pl.col("delay") >= DISTURBED * pl.col("dur"),
    }  # fmt: skip
    return rows.lazy().select(titled(columns)).pipe(collected, tables)


@shared
def steps_of_run(tables: Tables) -> pl.DataFrame:
    """Return the rows of the table ``run_steps``, and ``waiting``: neither on a core nor waiting for one, in ns."""
    names = ("number", "ts", "dur", "recorded", "cpu", "delay", "data_wait", "minor_faults", "major_faults")
    rows = columns_of(tables, "run_steps", *names, "voluntary_switches", "involuntary_switches")
    waiting = (rows["dur"] - rows["cpu"] - rows["delay"]).alias("waiting")
    return with_series(rows, [waiting.clip(0) if waiting.null_count() < len(rows) else waiting])


@shared
def summarised(tables: Tables) -> RunSteps:
    """Return what the summary says of the steps of the run."""
    rows = steps_of_run(tables)
    if rows.is_empty():
        return NONE
    durations = _floats(rows, "dur")
    known = durations[~np.isnan(durations)]
    low, median, high = (0.0, 0.0, 0.0) if not len(known) else np.percentile(known, _percentiles(len(known)))
    delays, recorded = _floats(rows, "delay"), rows["recorded"].to_numpy()
    measured = recorded & ~np.isnan(delays)
    waited, lasted = float(delays[measured].sum()), float(np.nansum(durations[measured]))
    outliers = _outlying(durations)
    found = RunSteps(
        count=len(rows),
        recorded=int(recorded.sum()),
        median_ns=float(median),
        low_ns=float(low),
        high_ns=float(high),
        picture=_picture(durations),
        outliers=int(outliers.sum()),
        longest=longest_steps(tables, rows, outliers, _inside(tables)),
        typical=_by_recording(_typical(rows), tables, int(recorded.sum())),
        disturbed=int((recorded & (delays >= DISTURBED * durations)).sum()),
        delay_share=waited / lasted if lasted else None,
        other_cpu=_other_cpu(tables),
        ended="run_end_unknown" not in columns_of(tables, "losses", "what")["what"].to_list(),
    )
    if not _ahead(tables, durations, recorded):
        return found
    found = replace(found, median_ns=0.0, low_ns=0.0, high_ns=0.0, picture=(), outliers=0, longest=())
    return replace(found, typical=None, ahead=True)


def disturbed_delays(tables: Tables) -> dict[int, int]:
    """Return the run-queue delay in ns of each recorded step that is disturbed, by the number of the step."""
    rows = steps_of_run(tables)
    delays, durations = _floats(rows, "delay"), _floats(rows, "dur")
    places = np.flatnonzero(rows["recorded"].to_numpy() & (delays >= DISTURBED * durations))
    return {rows["number"][place]: int(delays[place]) for place in places.tolist()}


def _ahead(tables: Tables, durations: Floats, recorded: npt.NDArray[np.bool_]) -> bool:
    """Return whether the host's times of single steps tell nothing of what they compute; see :data:`_AHEAD`."""
    steps = columns_of(tables, "steps", "dur")["dur"]
    computed = float(steps.sum())
    asked, known = float(np.nansum(durations[recorded])), durations[~np.isnan(durations)]
    late = known[_warm_up(len(known)) :]
    if not computed or not asked:
        return False
    return bool(asked <= _AHEAD * computed and np.median(late) <= _AHEAD * max(late.mean(), computed / len(steps)))


def _warm_up(count: int) -> int:
    return min(10, max(1, count // 10))


def _percentiles(count: int) -> list[float]:
    return [5, 50, 95] if count >= MANY else [0, 50, 100]


def _floats(rows: pl.DataFrame, column: str) -> Floats:
    """Return a column with NaN in place of null."""
    return np.asarray(rows[column].to_numpy(), np.float64)


def _outlying(durations: Floats) -> npt.NDArray[np.bool_]:
    known = durations[~np.isnan(durations)]
    if len(known) < MANY:
        return np.zeros(len(durations), np.bool_)
    median = float(np.median(known))
    deviation = 1.4826 * float(np.median(np.abs(known - median)))
    limit = max(_LONG * median, median + _FAR * deviation)
    return np.asarray(np.nan_to_num(durations) > limit)


def _picture(durations: Floats) -> tuple[int, ...]:
    edges = np.unique(np.linspace(0, len(durations), min(len(durations), _WIDTH) + 1).astype(np.int64))
    longest = np.maximum.reduceat(np.nan_to_num(durations), edges[:-1])
    return tuple(int(value) for value in longest)


@shared
def _inside(tables: Tables) -> dict[int, dict[str, int]]:
    """Return, for the place of each step that contains something, its names and their time in ns, longest first."""
    if not has_rows(tables, "run_events"):
        return {}
    rows, events = steps_of_run(tables), columns_of(tables, "run_events", "name", "ts", "dur")
    starts, ends = rows["ts"].to_numpy(), (rows["ts"] + rows["dur"].fill_null(0)).to_numpy()
    found: dict[int, dict[str, int]] = {}
    for place, name, ts, dur in zip(
        np.searchsorted(starts, events["ts"].to_numpy(), side="right") - 1, *events.iter_columns(), strict=True
    ):
        if place >= 0 and ts < ends[place]:
            times = found.setdefault(int(place), {})
            times[name] = times.get(name, 0) + int(min(dur, ends[place] - ts))
    return {place: dict(sorted(times.items(), key=lambda item: -item[1])) for place, times in found.items()}


def _median(values: pl.Series) -> float:
    found = values.median()
    return float(found) if isinstance(found, int | float) else 0.0


def _typical(rows: pl.DataFrame) -> Typical | None:
    """Compare the recorded steps with the others, without those of the warm-up: a tenth of all, at most ten."""
    known, was_recorded = np.flatnonzero(~np.isnan(_floats(rows, "dur"))), rows["recorded"].to_numpy()
    late = known[_warm_up(len(known)) :]
    mine, theirs = known[was_recorded[known]], late[~was_recorded[late]]
    if not len(mine) or len(theirs) < _OTHERS:
        return None
    recorded, others = rows[mine], rows[theirs]
    usual, other = _median(recorded["dur"]), _median(others["dur"])
    blocks = others["dur"].to_numpy()[: len(others) // len(recorded) * len(recorded)].reshape(-1, len(recorded))
    low, high = 1 - _LOOSE, 1 + _LOOSE
    if len(blocks) >= _BLOCKS:
        medians = np.median(blocks, axis=1) / max(other, 1)
        low, high = np.percentile(medians, [2.5, 97.5])
    ratio = usual / max(other, 1)
    least, most = (np.clip(limit, 1 - _APART, 1 + _APART) for limit in (min(low, 1 - _CLOSE), max(high, 1 + _CLOSE)))
    verdict = bool(least <= ratio <= most)
    found = Typical(verdict, usual, len(others), other)
    return found if verdict else _because(found, recorded, others)


def _because(found: Typical, recorded: pl.DataFrame, others: pl.DataFrame) -> Typical:
    """Name the part of the step whose median differs most, if it differs by much of the difference."""
    difference = found.others_ns - found.recorded_ns
    causes = {"data wait": "data_wait", "run queue": "delay", "computing": "cpu", "waiting": "waiting"}
    best, most = found, EXPLAINS * abs(difference)
    for cause, column in {**causes, "page faults": "minor_faults"}.items():
        size = _FAULT_NS if cause == "page faults" else 1
        if recorded[column].null_count() == len(recorded) or others[column].null_count() == len(others):
            continue
        mine, theirs = _median(recorded[column]), _median(others[column])
        explained = size * (theirs - mine) * (1 if difference > 0 else -1)
        if explained >= most:
            best = Typical(found.typical, found.recorded_ns, found.others, found.others_ns, cause, mine, theirs)
            if cause in ("data wait", "page faults"):  # these are parts of the two below
                return best
            most = explained
    return best


def _recorded_calls(tables: Tables) -> int:
    """Return how many calls of the host the recorded steps have."""
    if not has_rows(tables, "spans"):
        return 0
    calls = pl.col("kind").cast(pl.String).is_in(["operator", "python"]) & pl.col("step").is_not_null()
    return int(tables["spans"].filter(calls).select(pl.len()).pipe(collected, tables).item())


def _by_recording(found: Typical | None, tables: Tables, recorded: int) -> Typical | None:
    if found is None or found.cause != "computing":
        return found
    calls = _recorded_calls(tables) / recorded
    added = found.recorded_part - found.others_part
    if not 0 < added <= _RECORDING_NS * calls:
        return found
    return replace(found, cause="recording", recorded_part=added, others_part=calls)


def _other_cpu(tables: Tables) -> float | None:
    if not has_rows(tables, "counters"):
        return None
    samples = tables["counters"].filter(pl.col("name").cast(pl.String) == "other CPU")
    mean = samples.select(pl.col("value").mean()).pipe(collected, tables).item()
    return None if mean is None else mean / 100
