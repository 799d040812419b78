"""The summary's one line on what to look at first: that of the first rule that applies.

The thresholds are fractions of the steps' time. They are rules of thumb: above them the remedy usually pays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analyse.step.summary import Summary

DATA_WAIT, HOST_BOUND, COMMUNICATION, COPY, GARBAGE, NOTHING_RUNS = 0.15, 0.30, 0.20, 0.10, 0.03, 0.30
#: Kernels of templates have names of a thousand characters; the line shows so many of them.
NAME_LENGTH = 80


def look_first(summary: Summary) -> str:
    """Return the line of the first rule that applies."""
    return next(line for line in (rule(summary) for rule in RULES) if line)


def _part(summary: Summary, name: str) -> float:
    return next((part.share for part in summary.split if part.name == name), 0.0)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _of_the_step(summary: Summary, share: float) -> str:
    return f"{_percent(share)} of the {'step' if summary.steps.count else 'recording'}"


def _nothing(summary: Summary) -> str | None:
    if summary.steps.total_ns:
        return None
    return "Nothing was recorded: the trace holds no operator and no device work."


def _data_wait(summary: Summary) -> str | None:
    share = _part(summary, "data wait")
    if share <= DATA_WAIT:
        return None
    line = f"Data wait: training waits {_of_the_step(summary, share)} for its next batch"
    workers = summary.data_wait.workers
    if workers == 0:
        return f"{line}, which it loads itself (num_workers=0). Give the DataLoader workers: num_workers=4."
    if workers is None:
        return f"{line}. Raise the DataLoader's num_workers, or make loading one sample cheaper."
    return f"{line}, with {workers} workers. Raise num_workers or prefetch_factor, or make loading one sample cheaper."


def _host_bound(summary: Summary) -> str | None:
    share = _part(summary, "host only")
    if not summary.on_device or share <= HOST_BOUND:
        return None
    return (
        f"Launch-bound: the device idles {_of_the_step(summary, share)} while the host prepares its work. "
        "Larger batches, torch.compile or CUDA graphs launch more work per call."
    )


def _communication(summary: Summary) -> str | None:
    share = _part(summary, "communication")
    if share <= COMMUNICATION:
        return None
    return (
        f"Communication: {_of_the_step(summary, share)} is communication that no computing hides. "
        "Overlap it with the backward pass, send less (larger local batch, lower precision), or look for a slow rank."
    )


def _copy(summary: Summary) -> str | None:
    share = _part(summary, "copy")
    if share <= COPY:
        return None
    return (
        f"Copies: {_of_the_step(summary, share)} is copying that no computing hides. "
        "Pin the host memory and copy with non_blocking=True, or keep the data on the device."
    )


def _garbage(summary: Summary) -> str | None:
    share = summary.garbage.share
    if share <= GARBAGE:
        return None
    return (
        f"Garbage collection: Python's collector pauses {_of_the_step(summary, share)}. "
        "Call gc.freeze() before the loop, or disable it and collect between epochs."
    )


def _nothing_runs(summary: Summary) -> str | None:
    share = _part(summary, "idle")
    if share <= NOTHING_RUNS or summary.sampled < 1:
        return None
    return (
        f"Idle: for {_of_the_step(summary, share)} nothing that was recorded runs. "
        "Record with Python stacks (with_stack=True) to see which code it is."
    )


def _top(summary: Summary) -> str:
    host = "operators' self time" if summary.sampled == 1 else "steps, estimated from a sample,"
    for entries, what in ((summary.kernels, "device work"), (summary.operators, host)):
        if entries:
            name = entries[0].name
            name = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
            return f"{name}: {_percent(entries[0].share)} of the {what} in {entries[0].count} calls."
    return "No operator and no device work was recorded; the steps hold nothing to improve."


#: The rules, most rewarding first.
RULES: tuple[Callable[[Summary], str | None], ...] = (
    _nothing,
    _data_wait,
    _host_bound,
    _communication,
    _copy,
    _garbage,
    _nothing_runs,
    _top,
)
