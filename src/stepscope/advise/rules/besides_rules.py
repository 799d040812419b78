"""What a run does besides training: evaluations, checkpoints and logging that come too often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl

from stepscope.advise.calls import of_step
from stepscope.advise.claims import Claim, Depth
from stepscope.advise.finding import Confidence, Evidence, Finding
from stepscope.advise.observed import Observed
from stepscope.advise.trainers import trainer_says
from stepscope.analyse.quantities import duration_text
from stepscope.trace.tables import columns_of, has_rows

#: What comes less often than every so many steps is the user's choice.
_OFTEN = 25
#: Least number of them in a run.
_FEW = 3


class _Kind(NamedTuple):
    """What a run does besides training: cause, noun, part of a step from which on it is told, and the change."""

    cause: str
    noun: str
    told: float
    remedy: str


_KINDS = {
    "evaluation": _Kind(
        "frequent-evaluation", "an evaluation", 0.15,
        "Evaluate less often: if step % 500 == 0: evaluate(); or on a part of the validation data.",
    ),
    "checkpoint": _Kind(
        "frequent-checkpoint", "a checkpoint", 0.1,
        "Save less often: if step % 500 == 0: save(); or save in a thread, from a copy of the state.",
    ),
    "logging": _Kind(
        "frequent-logging", "logging", 0.05,
        "Log every tenth or hundredth step, numbers rather than tensors and histograms.",
    ),
}  # fmt: skip

#: Causes of what a run does besides training.
CAUSES = frozenset(kind.cause for kind in _KINDS.values())


def besides_training(observed: Observed) -> Iterator[Claim]:
    """Yield evaluations, checkpoints and logging that take a large part of the run, by all of its steps."""
    steps = observed.run_steps
    if steps.is_empty() or not has_rows(observed.tables, "run_events"):
        return
    begin, end = steps["ts"][0], steps["ts"][-1] + steps["dur"][-1]
    events = columns_of(observed.tables, "run_events", "name", "ts", "dur").with_columns(pl.col("name").cast(pl.String))
    events = events.filter(pl.col("ts").is_between(begin, end))
    quiet = float(steps["quiet"].sum()) / max(float(steps["dur"].sum()), 1.0)
    for name, kind in _KINDS.items():
        found = events.filter(pl.col("name") == name)
        every = len(steps) / max(len(found), 1)
        time = float(found["dur"].sum()) * quiet / len(steps)
        if len(found) < _FEW or every > _OFTEN or observed.share(time) < kind.told:
            continue
        each, often = time * every, "every step" if every < 1.5 else f"every {every:.0f} steps"
        finding = Finding(
            cause=kind.cause,
            title=f"{of_step(observed, time)} is {kind.noun} {often}, "
            f"{duration_text(each)} each time",
            gain_ns=round(0.95 * time), gain_low_ns=round(0.8 * time), gain_high_ns=round(1.1 * time),
            basis="its time over all steps of the run, of which a twentieth stays",
            confidence=Confidence.MEASURED,
            evidence=(
                Evidence(text=f"{len(found)} times in {len(steps)} steps", value=float(len(found)),
                         result="step_times"),
            ),
            remedy=trainer_says(observed, name, kind.remedy),
        )  # fmt: skip
        looks = observed.looks.filter(pl.col("phase") == name)
        yield Claim(finding, Depth.CAUSE, {f"event {name}": time, **observed.explained(looks)})
