"""What a comparison says, in sentences: one function for the terminal, the build server and the tests of a user."""

from __future__ import annotations

import re

from stepscope.analyse.operators.shown_names import readable
from stepscope.analyse.quantities import duration_text
from stepscope.comparison.comparison import Comparison
from stepscope.comparison.part_changes import PartChange
from stepscope.comparison.prediction import UNKNOWN, Prediction
from stepscope.comparison.verdict import NONE, SAME, StepChange

#: The change that people ask about.
ASKED = 0.05
#: A smaller change of all parts together would be printed as 0.
_SEEN = 0.0005
#: More separate runs a side than this are a case for turns.
_MANY_RUNS = 20
#: Characters of a name in a line of text; and the arguments of a function of C++, which need more.
_LONGEST, _ARGUMENTS = 48, re.compile(r"(?<=\S)\((?:[^()]|\([^()]*\))*\)$")


def headline(found: Comparison) -> str:
    """Return the verdict on the step, with its interval, or what it would take to have one."""
    step = found.step
    if step is None:
        told = _of_parts(found)
        return f"No step was timed alike on both sides. {told[0].upper()}{told[1:]}"
    if step.verdict == NONE:
        return f"One run a side: {_of_parts(found)} To tell: several runs a side, or --turns."
    interval = interval_text(step)
    if step.verdict != SAME:
        levels = f"{duration_text(step.a_ns)} -> {duration_text(step.b_ns)} a step"
        return f"{step.verdict.capitalize()}: {interval}, {levels}."
    if step.detectable is not None and step.detectable <= ASKED:
        return f"No difference: {interval}; {ASKED:.0%} would have been seen."
    needed = step.runs_needed(ASKED)
    if needed > _MANY_RUNS and not step.turns:
        again = f"this machine repeats itself to {step.spread or 0:.0%}: to see {ASKED:.0%}, let the two take --turns"
    else:
        more = max(needed - min(step.runs), 1)
        again = f"to see {ASKED:.0%}, run {more} more {'pairs' if step.turns else 'times a side'}"
    return f"No difference beyond noise: {interval}; {again}."


def interval_text(step: StepChange) -> str:
    """Return a change with its interval: ``+6.4 % (+3.9 … +8.9)``."""
    if step.low is None or step.high is None:
        return f"{100 * step.change:+.1f} %"
    return f"{100 * step.change:+.1f} % ({100 * step.low:+.1f} … {100 * step.high:+.1f})"


def _of_parts(found: Comparison) -> str:
    parts = found.parts
    if parts is None or parts.common is None:
        return "of operators nothing can be told."
    together = f"{100 * parts.common:+.1f} %: the machine, or everything" if abs(parts.common) >= _SEEN else ""
    if not parts.sure:
        all_of_them = f"changed {together}" if together else "changed by less than 0.1 %"
        return f"no part of the step changed more than the others; all of them together {all_of_them}."
    told = ", ".join(f"{part_name(part)} {signed(part.change_ns)}" for part in parts.sure[:2])
    return f"{told}, sure; all else together {together or 'did not change'}."


def signed(ns: float) -> str:
    """Return a change of time with its sign: ``+0.52 ms``."""
    return f"{'+' if ns >= 0 else '−'}{duration_text(abs(ns))}"


def short_name(name: str) -> str:
    """Return the name of an operator or kernel as a line of text has room for it; the JSON has all of it."""
    shorter = _ARGUMENTS.sub("", readable(name))
    return shorter if len(shorter) <= _LONGEST else f"{shorter[: _LONGEST - 1]}…"


def part_name(part: PartChange) -> str:
    """Return what to call a part: ``relu -> gelu`` where another has taken its place."""
    return " -> ".join(dict.fromkeys(short_name(name) for name in (part.name_a, part.name_b) if name))


def calls_text(part: PartChange) -> str:
    """Return what changed of the calls a step; empty if nothing did."""
    if part.calls_a == part.calls_b:
        return ""
    if part.name_a and part.name_b:
        return f"{part.calls_a:g} calls -> {part.calls_b:g}"
    count = part.calls_b or part.calls_a
    return f"{'new' if part.name_b else 'gone'}, {count:g} {'call' if count == 1 else 'calls'}"


def promise(kept: Prediction) -> str:
    """Return whether an advice held: what was predicted, what was measured."""
    low, high = duration_text(kept.predicted_low_ns), duration_text(kept.predicted_high_ns)
    said = f"{', '.join(kept.causes)}: predicted {duration_text(kept.predicted_ns)} ({low} … {high})"
    if kept.measured_ns is None or kept.measured_half_ns is None or kept.verdict == UNKNOWN:
        return f"{said}; what was saved cannot be told from one run a side"
    measured = duration_text(abs(kept.measured_ns)) if kept.measured_ns >= 0 else f"−{duration_text(-kept.measured_ns)}"
    return f"{said}, measured {measured} ± {duration_text(kept.measured_half_ns)}: {kept.verdict}"
