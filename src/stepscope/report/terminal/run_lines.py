"""The lines of the summary about all steps of the run: their times, whether the recorded ones are typical."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from stepscope.analyse.quantities import count_text, percent_text
from stepscope.analyse.step.long_steps import Outlier
from stepscope.analyse.step.run_steps import MANY, OTHERS_USE, RunSteps, Typical
from stepscope.analyse.step.summary import Steps, Summary

#: Signs of the picture by height, in Unicode and in ASCII.
_HEIGHTS, _ASCII_HEIGHTS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
#: The picture ends at this many times its lowest step: longer steps are outliers, and would flatten the rest.
_TALLEST = 4.0
#: Below this height the picture does not show noise as mountains.
_FLAT = 1.5
#: A smaller share of the recorded time is not worth a word.
_DELAYED = 0.05

_Time = Callable[[float], str]

#: What differs between recorded and other steps, in words.
_DIFFERS = {
    "data wait": "these wait {mine} for data, the others {theirs}",
    "run queue": "these wait {mine} for a core, the others {theirs}",
    "computing": "the processor works {mine} for these, {theirs} for the others",
    "waiting": "the thread waits {mine} in these, {theirs} in the others",
    "recording": "recording {theirs} calls a step adds {mine}",
    "page faults": "these have {mine} page faults, the others {theirs}",
}
_IN_A_STEP = {"run queue": "waiting for a core", "data wait": "waiting for data"}


def run_lines(run: RunSteps, time: _Time, width: int, *, ascii_only: bool) -> Iterator[tuple[str, Text]]:
    """Yield a label and a line for each thing to say; nothing of a run without other steps than the recorded ones.

    Args:
        run: The steps of the run.
        time: Returns nanoseconds as text.
        width: Columns of a line.
        ascii_only: Whether the terminal shows ASCII only.
    """
    count = f"{'' if run.ended else 'at least '}{count_text(run.count, 'step')}"
    if run.count > run.recorded and run.median_ns:
        dash = "-" if ascii_only else "–"
        said = f"median {time(run.median_ns)} ({time(run.low_ns)}{dash}{time(run.high_ns)})"
        signs = picture(run.picture, max(width - len(said) - len(count) - 4, 1), ascii_only=ascii_only)
        yield "whole run", Text.assemble((count, "bold"), f"  {signs}  {said}")
        if run.outliers:
            yield "", Text(_outliers(run, time))
        if run.recorded:
            yield _typical(run, time)
    if run.ahead:
        told = "only the recorded ones are timed: the host runs ahead of the computation"
        yield "whole run", Text.assemble((count, "bold"), f"; {told}")
    if run.disturbed or (run.delay_share or 0) >= _DELAYED:
        yield "disturbed", Text(_disturbed(run), style="yellow")


def picture(longest: Sequence[int], width: int, *, ascii_only: bool) -> str:
    """Return the longest step of each part of the run as a row of signs, no longer than ``width``."""
    size = -(-len(longest) // width)
    bins = [max(longest[first : first + size]) for first in range(0, len(longest), size)]
    low = min((value for value in bins if value), default=1)
    high = min(max(*bins, _FLAT * low), _TALLEST * low)
    heights = _ASCII_HEIGHTS if ascii_only else _HEIGHTS
    top = len(heights) - 1
    return "".join(heights[max(0, min(round(top * (value - low) / max(high - low, 1)), top))] for value in bins)


def histogram(counts: Sequence[int], *, ascii_only: bool) -> str:
    """Return counts as a row of signs from zero, where nothing is drawn, to the largest."""
    heights = _ASCII_HEIGHTS if ascii_only else _HEIGHTS
    scale = len(heights) / max(*counts, 1)
    return "".join(heights[math.ceil(count * scale) - 1] if count else " " for count in counts)


def spread_text(steps: Steps, time: _Time) -> str:
    """Return how far the recorded steps spread: the 95th percentile, of a few their shortest and longest."""
    if steps.count >= MANY:
        return f"p95 {time(steps.p95_ns)}"
    return f"{time(steps.shortest_ns)} to {time(steps.longest_ns)}"


def preempted_text(summary: Summary, time: _Time) -> str:
    """Return what the list of operators leaves out."""
    calls = count_text(summary.preempted, "call")
    return f"without {time(summary.preempted_ns)} in which {calls} waited for a core"


def _outliers(run: RunSteps, time: _Time) -> str:
    told = "; ".join(_outlier(step, time) for step in run.longest)
    more = run.outliers - len(run.longest)
    return f"{told}; {more:,} more took long" if more else told


def _outlier(step: Outlier, time: _Time) -> str:
    causes = ", ".join(f"{_IN_A_STEP.get(name, name)} {time(ns)}" for name, ns in step.causes[:2])
    return f"step {step.number:,} took {time(step.dur_ns)}{f': {causes}' if causes else ''}"


def _typical(run: RunSteps, time: _Time) -> tuple[str, Text]:
    found = run.typical
    if found is None:
        return "recorded", Text(f"{count_text(run.recorded, 'step')}; too few others to say whether they are typical")
    if found.typical:
        both = f"median {time(found.recorded_ns)}, of the other {found.others:,} {time(found.others_ns)}"
        return "recorded", Text(f"{count_text(run.recorded, 'step')}, typical of the others: {both}")
    return "not typical", Text(f"{_compared(found, time)}{_because(found, time)}", style="yellow")


def _compared(found: Typical, time: _Time) -> str:
    return f"the recorded steps take {time(found.recorded_ns)}, the other {found.others:,} {time(found.others_ns)}"


def _because(found: Typical, time: _Time) -> str:
    if not found.cause:
        return ""
    mine = f"{found.recorded_part:,.0f}" if found.cause == "page faults" else time(found.recorded_part)
    theirs = f"{found.others_part:,.0f}" if found.cause in ("page faults", "recording") else time(found.others_part)
    return ": " + _DIFFERS[found.cause].format(mine=mine, theirs=theirs)


def _disturbed(run: RunSteps) -> str:
    """Say how long the training thread waited for a core, and who had it."""
    share = percent_text(run.delay_share or 0)
    disturbed = f"a tenth or more of {run.disturbed} of {run.recorded} steps"
    steps = disturbed if run.disturbed else "no step for a tenth of it"
    said = f"the training thread waited for a core {share} of the recorded time ({steps})"
    if run.other_cpu is None:
        return said
    if run.other_cpu < OTHERS_USE:
        return f"{said}: the program has more threads and workers that compute than there are cores"
    return f"{said}: other processes used {run.other_cpu:.1f} cores"
