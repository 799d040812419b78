"""Which operators a sample holds: some of each of the first steps; from then on all of some steps.

torch can draw operators itself (``samplingProb`` of a callback), but draws at every node of a backward graph anew: a
tenth of a step of small operators, whatever fraction is asked for. In a step of which nothing is recorded it has
nothing to do. So of the first 1/√p steps, and in programs that declare none, each operator is drawn with the
probability p, that short recordings have some; from then on steps are.
"""

from __future__ import annotations

import math
import random

from stepscope.native.recorder import Recording


class StepSample:
    """Draws steps, and tells the recorder.

    Args:
        recording: It has begun.
        fraction: Of the operators, less than 1.
    """

    def __init__(self, recording: Recording, fraction: float) -> None:
        self._recording = recording
        self._fraction = fraction
        self._drawn: bool | None = None  # not the step, but each of its operators
        self._chance = random.Random()  # noqa: S311 - and not the program's, which it may have seeded
        self._change_at: int | None = None

    def begin_step(self, number: int) -> int:
        """Begin or end to record where it is time to; return the number of the step in which it is next."""
        if self._change_at is None:
            self._change_at = number + math.ceil(1 / math.sqrt(self._fraction))
        if number >= self._change_at:
            self._change_at = number + self._change()
        return self._change_at

    def _change(self) -> int:
        """Change; return how many steps are alike from here on, as if each were drawn by itself."""
        self._drawn = self._chance.random() < self._fraction if self._drawn is None else not self._drawn
        self._recording.listen(float(self._drawn))
        change = 1 - self._fraction if self._drawn else self._fraction
        return 1 + int(math.log1p(-self._chance.random()) / math.log1p(-change))
