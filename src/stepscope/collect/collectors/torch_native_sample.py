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
        self._drawn = False
        self._chance = random.Random()  # noqa: S311 - and not the program's, which it may have seeded
        self._first = True
        # Steps up to the next change. What runs in every step is little.
        self._left = math.ceil(1 / math.sqrt(fraction)) + 1

    def begin_step(self, number: int) -> None:  # noqa: ARG002 - only that it does
        """A step begins."""
        self._left -= 1
        if self._left == 0:
            self._change()

    def end_step(self) -> None:
        """The step ends."""

    def _change(self) -> None:
        self._drawn = self._chance.random() < self._fraction if self._first else not self._drawn
        self._first = False
        self._recording.listen(float(self._drawn))
        # As if each step were drawn by itself: so many in a row are alike.
        change = 1 - self._fraction if self._drawn else self._fraction
        self._left = 1 + int(math.log1p(-self._chance.random()) / math.log1p(-change))
