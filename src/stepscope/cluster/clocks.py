"""One clock for the ranks of a job: what to add to the times of each, and by how much that may be wrong.

The start is the wall clock of each rank. The ends of the same collectives then say how the clocks differ
(:mod:`stepscope.cluster.clock.line_fit`); ranks of one host have one clock, where nothing speaks against it. Where a
clock cannot be known, its offset and uncertainty are null and ``reason`` says why.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.cluster.clock import shared_hosts, usable_ends
from stepscope.cluster.clock.line_fit import Flags, Floats, Integers, Lines
from stepscope.cluster.clock.shared_hosts import Estimates
from stepscope.cluster.job_tables import Frame, JobTables
from stepscope.cluster.meetings import POINT_TO_POINT

#: Factors of standard deviations in an uncertainty: of the fit, and of the exit jitter.
_FIT, _EXIT = 3.3, 0.25
#: A line through the ends of a clock that bends may be wrong by so many times the bend, at the ends of the recording.
_BENDS = 6.0
#: So few ends of a rank may lie on a line by chance: their exit jitter is then not known to be less than this, in ns.
_FEW_ENDS, _JITTER = 6, 5_000.0
#: A drift is known if it is known better than this, in ppm; clocks of computers do not drift faster than the second.
_DRIFT_KNOWN, _DRIFT_POSSIBLE = 50.0, 100.0
#: Why messages do not compare the clocks of ranks.
_UNNAMED = "; its messages do not say between which ranks they went (PyTorch writes that from 2.5 on)"
_SCHEMA = {
    "rank": pl.Int32(),
    "host": pl.String(),
    "offset_ns": pl.Int64(),
    "drift_ppm": pl.Float64(),
    "uncertainty_ns": pl.Int64(),
    "anchor": pl.Int64(),
    "reason": pl.String(),
    "component": pl.Int32(),
}


def clocks(tables: JobTables, meetings: Frame) -> Frame:
    """Find the clock of the job.

    Args:
        tables: The tables of the job.
        meetings: What :func:`stepscope.cluster.meetings.meetings` returns for them.

    Returns:
        A row a rank: ``rank``, ``host``; job time is local time + ``offset_ns`` + ``drift_ppm`` / 10^6 × (local time
        − ``anchor``), true within ± ``uncertainty_ns`` while the rank was recorded; ``drift_ppm`` is null where it is
        not known, and counts as 0. ``anchor`` is a time of the rank, in ns. Offset, drift, uncertainty and anchor are
        null where ``reason`` says why they are not known. ``component`` is equal for ranks whose clocks are compared.
        Job time is the clock of the first rank that shares at least half as many collectives as the busiest one.
    """
    names = tables.ranks.filter(pl.col("fault").is_null()).unique("rank", keep="first", maintain_order=True)
    names = names.sort("rank").select("rank", "host", "wall_clock", "device")
    base, first, last = _windows(names, tables)
    lines, moved, reasons = usable_ends.fitted(meetings, names, base)
    lines = shared_hosts.drawn_together(names, lines, base)
    by_chance = np.where(lines.count > _FEW_ENDS, 0.0, _JITTER / np.maximum(lines.reach, 1.0))
    drift_known = _FIT * np.maximum(lines.drift_deviation, by_chance) * 1e6 < _DRIFT_KNOWN
    estimates = Estimates(
        base=base + np.round(lines.centre).astype(np.int64),
        offset=lines.offset + (base[lines.reference] - base),
        drift=np.where(drift_known, lines.drift, 0.0),
        drift_known=drift_known,
        uncertainty=_uncertainty(lines, first, last, drift_known),
        component=lines.component,
        reference=lines.reference,
        moved=moved,
        reasons=reasons,
    )
    found = _frame(names, shared_hosts.joined(names, estimates))
    unnamed = pl.col("operation").is_in(POINT_TO_POINT) & pl.col("source").is_null() & pl.col("destination").is_null()
    silent = tables.collectives.filter(unnamed)["rank"].unique()
    why = pl.when(pl.col("rank").is_in(silent.implode())).then(pl.col("reason") + _UNNAMED).otherwise("reason")
    return found.with_columns(reason=why)


def to_job_time(frame: Frame, clocks: Frame, *columns: str) -> Frame:
    """Return ``frame``, which has a column ``rank``, with the times in ``columns`` on the clock of the job.

    Times of ranks without a known clock become null.
    """
    known = clocks.select("rank", _offset="offset_ns", _drift="drift_ppm", _anchor="anchor")
    joined = frame.join(known, on="rank", how="left", maintain_order="left")
    drift = pl.col("_drift").fill_null(0.0) / 1e6
    return joined.with_columns(
        pl.col(column) + pl.col("_offset") + ((pl.col(column) - pl.col("_anchor")) * drift).round().cast(pl.Int64)
        for column in columns
    ).drop("_offset", "_drift", "_anchor")


def _windows(names: Frame, tables: JobTables) -> tuple[Integers, Floats, Floats]:
    """Return for each rank a time of its own in ns, and first and last time of its steps and collectives since then."""
    parts = [
        frame.select("rank", begin="ts", end=pl.col("ts") + pl.col("dur"))
        for frame in (tables.steps, tables.collectives)
    ]
    seen = pl.concat(parts).group_by("rank").agg(pl.col("begin").min(), pl.col("end").max())
    window = names.select("rank").join(seen, on="rank", how="left", maintain_order="left").fill_null(0)
    base = window["begin"].to_numpy()
    return base, np.zeros(len(base)), (window["end"] - window["begin"]).to_numpy().astype(float)


def _uncertainty(lines: Lines, first: Floats, last: Floats, drift_known: Flags) -> Floats:
    """Return the uncertainties: of the fit, of the exit jitter that lasts, and away from the middle of the ends."""
    usual = float(np.median(lines.noise[lines.count > 0])) if (lines.count > 0).any() else 0.0
    exit_ = _EXIT * lines.noise + np.maximum(lines.noise - usual, 0.0)
    away = np.maximum(lines.centre - first, last - lines.centre)
    slope = np.where(drift_known, _FIT * np.minimum(lines.drift_deviation, 1.0), _DRIFT_POSSIBLE / 1e6)
    # The fit is judged at both ends of the collectives; without a drift it holds in their middle.
    outside = np.where(drift_known, np.maximum(away - lines.reach, 0.0), away)
    deviation = np.where(drift_known, lines.end_deviation, lines.deviation)
    return _FIT * deviation + exit_ + np.where(lines.count > 0, _BENDS * lines.bend + slope * outside, 0.0)


def _frame(names: Frame, found: Estimates) -> Frame:
    known = [not reason for reason in found.reasons]

    def of_known(values: list[int] | list[float]) -> list[float | None]:
        return [value if good else None for value, good in zip(values, known, strict=True)]

    drift = zip(of_known((found.drift * 1e6).tolist()), found.drift_known.tolist(), strict=True)
    columns = {
        "rank": names["rank"],
        "host": names["host"],
        "offset_ns": of_known([round(value) for value in found.offset.tolist()]),
        "drift_ppm": [value if drift_known else None for value, drift_known in drift],
        "uncertainty_ns": of_known(np.where(known, np.ceil(found.uncertainty), 0).astype(np.int64).tolist()),
        "anchor": of_known(found.base.tolist()),
        "reason": [reason or None for reason in found.reasons],
        "component": found.component,
    }
    return pl.DataFrame(columns, schema=_SCHEMA)
