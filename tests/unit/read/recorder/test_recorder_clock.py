"""Times of the recorder lie on the time line of the journal: both turn the monotonic clock into the epoch alike."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.read.recorder.recorder_blocks import Moment
from stepscope.read.recorder.recorder_clock import RecorderTicks
from stepscope.trace.clock import Anchor, Clock

BEGIN, EPOCH, HALF_A_SECOND = 5_000_000_000_000, 1_764_000_000_000_000_000, 500_000_000


@pytest.mark.parametrize("set_by", [0, -3_600_000_000_000, 7_000_000], ids=["slewed", "and set back", "and set"])
def test_a_clock_that_is_slewed_moves_between_its_readings(set_by: int) -> None:
    # Given NTP that slows the system's clock by 500 ppm, and perhaps sets it in between
    moments = [
        Moment(3 * at, BEGIN + at, EPOCH + at - at // 2_000 + set_by * (at > 2 * HALF_A_SECOND), 40, 40)
        for at in range(0, 5 * HALF_A_SECOND, HALF_A_SECOND)
    ]
    times = BEGIN + np.arange(-100_000_000, 3_000_000_000, 7_654_321, dtype=np.int64)
    clock = Clock(Anchor(moment.monotonic, moment.epoch, moment.epoch_uncertainty) for moment in moments)
    found = RecorderTicks(moments, ticks_are_ns=False)
    assert found.jumps == clock.jumps == bool(set_by)
    assert np.abs(found.epochs(times) - np.array(clock.epochs(times.tolist()))).max() <= 1
