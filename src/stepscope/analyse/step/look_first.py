"""The summary's one line on what to look at first: that of the first rule that applies.

The thresholds are fractions of the steps' time. They are rules of thumb: above them the remedy usually pays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepscope.extensions import guarded

if TYPE_CHECKING:
    from stepscope.analyse.step.summary import Summary

DATA_WAIT = 0.15
#: Part of the step, the largest share of it that is well, and the line for more.
_LIMITS: tuple[tuple[str, float, str], ...] = (
    (
        "host only",
        0.30,
        "Launch-bound: the device idles {} while the host prepares its work. "
        "Larger batches, torch.compile or CUDA graphs launch more work per call.",
    ),
    (
        "communication",
        0.20,
        "Communication: {} is communication that no computing hides. Overlap it with the backward pass, send less "
        "(larger local batch, lower precision), or look for a slow rank.",
    ),
    (
        "copy",
        0.10,
        "Copies: {} is copying that no computing hides. "
        "Pin the host memory and copy with non_blocking=True, or keep the data on the device.",
    ),
    (
        "garbage",
        0.03,
        "Garbage collection: Python's collector pauses {}. "
        "Call gc.freeze() before the loop, or disable it and collect between epochs.",
    ),
    (
        "idle",
        0.30,
        "Idle: for {} nothing that was recorded runs. "
        "Record with Python stacks (with_stack=True) to see which code it is.",
    ),
)
#: Kernels of templates have names of a thousand characters; the line shows so many of them.
NAME_LENGTH = 80


def look_first(summary: Summary) -> str:
    """Return the line of the first rule that applies; the rules of other packages come first."""
    rules = (*guarded("stepscope.rules"), *RULES)
    return next(line for line in (rule(summary) for rule in rules) if line)


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


def _too_large(summary: Summary) -> str | None:
    for name, limit, line in _LIMITS:
        share = summary.garbage.share if name == "garbage" else _part(summary, name)
        # Only a device waits for the host; in a sample, the time of operators that are left out counts as idle.
        known = summary.on_device if name == "host only" else summary.sampled == 1 if name == "idle" else True
        if known and share > limit:
            return line.format(_of_the_step(summary, share))
    return None


def _top(summary: Summary) -> str:
    host = "operators' self time" if summary.sampled == 1 else "steps, estimated from a sample,"
    for entries, what in ((summary.kernels, "device work"), (summary.operators, host)):
        if entries:
            name = entries[0].name
            name = name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"
            return f"{name}: {_percent(entries[0].share)} of the {what} in {entries[0].count} calls."
    return "No operator and no device work was recorded; the steps hold nothing to improve."


#: The rules, most rewarding first.
RULES: tuple[Callable[[Summary], str | None], ...] = (_nothing, _data_wait, _too_large, _top)
