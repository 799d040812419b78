"""Did an advice hold? What the findings of A predicted, against what B measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.comparison.part_changes import PartChanges
from stepscope.comparison.verdict import StepChange
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.run import Run

AS_PREDICTED, LESS, MORE, UNKNOWN = "as predicted", "less than predicted", "more than predicted", "cannot tell"
_OF_THE_MACHINE = "other-processes"


class PredictedGain(msgspec.Struct, frozen=True):
    """One finding of a run, as far as it predicts: its gain per step in ns with its interval, and the step's time."""

    cause: str
    title: str = ""
    gain_ns: float | None = None
    gain_low_ns: float | None = None
    gain_high_ns: float | None = None
    step_ns: float | None = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What was predicted of the findings of A that B has no more, and what was measured.

    Attributes:
        causes: Causes of the findings that were followed.
        predicted_ns: Sum of their gains per step.
        predicted_low_ns: Lower end of its interval.
        predicted_high_ns: Upper end.
        measured_ns: What the step of B takes less; None if it cannot be told.
        measured_half_ns: Half the width of its interval.
        verdict: :data:`AS_PREDICTED`, :data:`LESS`, :data:`MORE` or :data:`UNKNOWN`.
        of_ns: The step that the prediction is a part of; None if unknown.
    """

    causes: list[str]
    predicted_ns: float
    predicted_low_ns: float
    predicted_high_ns: float
    measured_ns: float | None
    measured_half_ns: float | None
    verdict: str
    of_ns: float | None = None


def gains_of(run: Run) -> list[PredictedGain] | None:
    """Return the findings of a run, or of a job; None of data that cannot be judged."""
    try:
        return [msgspec.convert(finding, PredictedGain, from_attributes=True) for finding in run.findings]
    except StepscopeError:
        return None


def followed(a: Sequence[PredictedGain], b: Sequence[PredictedGain] | None) -> list[PredictedGain]:
    """Return the findings of A that were followed: those that B has no more; unless B says, the first with a gain.

    Other processes do not count: they are not the program's, and times are compared without waits for a core.
    """
    gains = [finding for finding in a if finding.gain_ns is not None and finding.cause != _OF_THE_MACHINE]
    if b is None:
        return gains[:1]
    left = {finding.cause for finding in b}
    return [finding for finding in gains if finding.cause not in left]


def held(gains: Sequence[PredictedGain], step: StepChange | None, parts: PartChanges | None) -> Prediction | None:
    """Return whether the gains came; None without a finding that was followed.

    The step decides where several runs a side measure it, else the operators that surely changed.
    """
    if not gains:
        return None
    predicted = sum(finding.gain_ns or 0.0 for finding in gains)
    low, high = (
        sum(finding.gain_ns or 0.0 if (end := getattr(finding, name)) is None else end for finding in gains)
        for name in ("gain_low_ns", "gain_high_ns")
    )
    return measured_against(
        Prediction(
            causes=[finding.cause for finding in gains],
            predicted_ns=predicted,
            predicted_low_ns=low,
            predicted_high_ns=high,
            measured_ns=None,
            measured_half_ns=None,
            verdict=UNKNOWN,
            of_ns=gains[0].step_ns,
        ),
        step,
        parts,
    )


def measured_against(kept: Prediction, step: StepChange | None, parts: PartChanges | None) -> Prediction:
    """Return a prediction with what was measured, and whether it held.

    A finding is of recorded steps, and of its hour of the machine. Where the step is measured, its part of the recorded
    step is predicted of the measured one.
    """
    measured, half = _measured(step, parts)
    if step is not None and step.low is not None and kept.of_ns:
        names = ("predicted_ns", "predicted_low_ns", "predicted_high_ns")
        scaled = {name: getattr(kept, name) * step.a_ns / kept.of_ns for name in names}
        kept = msgspec.structs.replace(kept, **scaled, of_ns=step.a_ns)
    verdict = UNKNOWN
    if measured is not None and half is not None:
        gap = math.hypot((kept.predicted_high_ns - kept.predicted_low_ns) / 2, half)
        less = LESS if measured < kept.predicted_ns else MORE
        verdict = AS_PREDICTED if abs(measured - kept.predicted_ns) <= gap else less
    return msgspec.structs.replace(kept, measured_ns=measured, measured_half_ns=half, verdict=verdict)


def _measured(step: StepChange | None, parts: PartChanges | None) -> tuple[float | None, float | None]:
    if step is not None and step.low is not None and step.high is not None:
        return -step.change * step.a_ns, (step.high - step.low) / 2 * step.a_ns
    if parts is not None and parts.sure:
        return -parts.change_ns, (parts.high_ns - parts.low_ns) / 2
    return None, None
