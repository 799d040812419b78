"""Tensors of the CPU whose numbers Python reads one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stepscope.advise.calls import explained_calls, of_step, recorded_calls
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.rules.python_rules import READS, converting
from stepscope.analyse.quantities import duration_text

#: Operators that make a number of Python from one element.
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
#: Reads of a step from which on they are a loop; ns between two of them up to which nothing else goes on.
_MANY, _BETWEEN = 32, 100_000
#: A distance between two reads counts with at most so many of the usual one: a longer one was interrupted.
_LONGEST = 4.0
#: Part of the step from which on it is told, and what one operator for all elements saves of it: least, usual.
_TOLD, _SAVED = 0.05, (0.7, 0.95)
#: How frameworks whose reads are no operators read a number; and a whole tensor, for what to do instead.
_READS_BY_CALL = {
    "mindspore": "stack the results (ops.stack) and call .asnumpy() once",
    "paddle": "compare and add up tensors, or stack the results (paddle.stack), and call .numpy() once",
}
#: Part of a line's time in calls that read values, from which on it reads in a loop, and looks that tell it.
_READING, _LOOKS = 0.1, 4
#: What makes a tensor per element for a loop over them.
_SPLITS = "aten::unbind"


def element_reads(observed: Observed) -> Iterator[Claim]:
    """Yield a loop that reads the elements of tensors one by one, known by its operators in the recorded steps."""
    if observed.summary.on_device or not observed.step_ns:
        return
    if observed.framework in _READS_BY_CALL:
        yield from _read_line(observed)
    if observed.framework != "torch":
        return
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    top = calls.filter((pl.col("outer") < 0) & ~pl.col("phase").is_in(["backward", "optimizer"]).fill_null(value=False))
    reads, splits = top.filter(pl.col("name").is_in(_READS)), top.filter(pl.col("name") == _SPLITS)
    many = len(reads) / steps
    if many < _MANY:
        return
    time = _lasting(reads) * min(observed.step_ns / max(observed.summary.steps.mean_ns, 1.0), 1.0) / steps
    time = min(time + float(splits["time"].sum()), observed.step_ns)
    if observed.share(time) < _TOLD:
        return
    looks = observed.looks.filter(
        (pl.col("leaf") == pl.col("file")) & pl.col("phase").is_null() & pl.col("state").is_in(["python", "native"])
    )
    seen = observed.explained(looks)
    scale = min(time / max(sum(seen.values()), 1.0), 1.0)
    low, gain = (part * time for part in _SAVED)
    finding = Finding(
        cause="python-in-step",
        title=f"{of_step(observed, time)} Python reads numbers from tensors one by one, {many:,.0f} times a step"
        + _where(observed, looks),
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(1.5 * time, observed.step_ns)),
        basis="the time from read to read in the recorded steps, as far as nothing else goes on between them",
        confidence=Confidence.MEASURED,
        evidence=(
            Evidence(text=f"{many:,.0f} numbers a step are read by .item(), float(), int(), bool() or a comparison, "
                     f"{duration_text(time)} together", value=many, result="operator_details",
                     operator=str(reads["name"][0])),
        ),
        remedy="Compute on whole tensors and read the result: right += (predicted == y).sum().item() instead of a "
        "loop, torch.stack(torch._foreach_norm(tensors)) for many tensors; values = tensor.tolist() reads all at once.",
        operator=str(reads["name"][0]),
    )  # fmt: skip
    explains = {**explained_calls(pl.concat([reads, splits])), **{name: scale * ns for name, ns in seen.items()}}
    yield Claim(finding, Depth.CAUSE, explains)


def _read_line(observed: Observed) -> Iterator[Claim]:
    """Yield a line beside forward, backward and optimizer that calls many operators a step and reads their values."""
    beside = ~pl.col("phase").is_in(["forward", "backward", "optimizer"]).fill_null(value=False)
    calls, steps = recorded_calls(observed), max(observed.summary.steps.count, 1)
    many = len(calls.filter((pl.col("outer") < 0) & beside)) / steps
    if many < _MANY:
        return
    reads = pl.col("stack").is_in(converting(observed, READS))
    looks = observed.looks.filter(beside & (pl.col("phase") != "data").fill_null(value=True))
    looks = looks.filter(pl.col("file").is_not_null())
    read = pl.col("time").filter(reads).sum()
    lines = looks.group_by("file", "line").agg(pl.col("time", "count").sum(), reading=read / pl.col("time").sum())
    lines = lines.filter((pl.col("reading") >= _READING) & (pl.col("count") >= _LOOKS)).sort("time", descending=True)
    if lines.is_empty() or observed.share(time := float(lines["time"][0])) < _TOLD:
        return
    file, line = str(lines["file"][0]), int(lines["line"][0])
    place, low, gain = observed.place(file, line), _SAVED[0] * time, _SAVED[1] * time
    finding = Finding(
        cause="python-in-step",
        title=f"{of_step(observed, time)} {place} computes with single values and reads them one by one",
        gain_ns=round(gain), gain_low_ns=round(low), gain_high_ns=round(min(1.5 * time, observed.step_ns)),
        basis="the time of this line in the sampled stacks of all steps, nearly all of which one call for all saves",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(text=f"{many:,.0f} operators a step outside of forward, backward and optimizer", value=many,
                     result="operator_details"),
            Evidence(text=f"{place}: {duration_text(time)} a step in {lines['count'][0]:.0f} looks", value=time,
                     unit="ns", source=f"{file}:{line}", result="python_lines"),
        ),
        remedy=f"Compute on whole tensors: {_READS_BY_CALL[observed.framework]}.",
        operator=place,
    )  # fmt: skip
    mine = looks.filter((pl.col("file") == file) & (pl.col("line") == line))
    yield Claim(finding, Depth.CAUSE, observed.explained(mine))


def _lasting(reads: pl.DataFrame) -> float:
    """Return the time from one read to the next in all recorded steps, ns, where they follow each other."""
    ordered = reads.sort("step", "ts")
    apart = np.diff(ordered["ts"].to_numpy())[np.diff(ordered["step"].to_numpy()) == 0]
    apart = apart[apart <= _BETWEEN]
    return float(np.minimum(apart, _LONGEST * np.median(apart)).sum()) if len(apart) else 0.0


def _where(observed: Observed, looks: pl.DataFrame) -> str:
    """Return the line in which the samples see most of it, as text; empty if they see none."""
    rows = looks.filter(pl.col("file").is_not_null()).group_by("file", "line").agg(pl.col("time").sum())
    if rows.is_empty():
        return ""
    file, line, _ = rows.sort("time", "file", "line", descending=[True, False, False]).row(0)
    return f": {observed.place(file, line)}"
