"""Is the step of B slower than that of A? Groups of runs, or pairs that took turns on one machine.

The unit of evidence is the process, never the step: steps of one process share its luck. Formulas, defaults and what
they find: ``docs/compare.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from stepscope.comparison.distribution import rank_interval, t_quantile
from stepscope.comparison.levels import RunLevel

#: No machine repeats itself better than this.
_LEAST = 0.003
#: Most degrees of freedom that earlier comparisons of a machine are worth.
_MOST_FREEDOM = 30.0
#: Runs a side from which on ranks decide, and no shape of the noise is assumed.
_RANKS = 5
#: Part of the true changes of size `detectable` that are found.
_POWER = 0.9
#: How sure one look is, and each of several looks.
SURE, SURE_OF_SEVERAL = 0.95, 0.975

SLOWER, FASTER, SAME, NONE = "slower", "faster", "no difference", "one run a side"


class Spread(msgspec.Struct, frozen=True):
    """How far runs of one unchanged program lie apart on one machine.

    Attributes:
        size: Standard deviation of the logarithm of the level; in turns, of its difference in a pair.
        freedom: Degrees of freedom that it is worth.
        source: ``history``: measured on this machine with this program; ``shipped``: nobody has measured it here.
    """

    size: float
    freedom: float
    source: str = "shipped"


#: Where nobody has measured: of runs by themselves, and of pairs in turns; the second of each is that of the mean.
SHIPPED = {False: Spread(0.10, 2.0), True: Spread(0.025, 2.0)}
SHIPPED_MEAN = {False: Spread(0.12, 2.0), True: Spread(0.05, 2.0)}


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the step changed from A to B.

    Attributes:
        a_ns: Level of A: the 10th percentile of the own times, the geometric mean over its runs.
        b_ns: That of B.
        change: B / A - 1.
        low: Lower end of its interval; None with one run a side.
        high: Upper end.
        detectable: The smallest change that nine of ten such comparisons find; None with one run a side.
        spread: Standard deviation between runs, or of pairs in turns, as a fraction of the level.
        spread_from: What most of it is known by: ``these runs``, ``history`` of this machine, or ``shipped``.
        freedom: Degrees of freedom of the spread.
        runs: Runs of A and of B.
        turns: Whether run i of A and run i of B took turns.
        verdict: :data:`SLOWER`, :data:`FASTER`, :data:`SAME`, or :data:`NONE` where one run a side says nothing.
    """

    a_ns: float
    b_ns: float
    change: float
    runs: tuple[int, int]
    verdict: str
    turns: bool = False
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    spread: float | None = None
    spread_from: str = ""
    freedom: float = 0.0

    def runs_needed(self, effect: float) -> int:
        """Return how many runs a side, or pairs, find a change of ``effect`` nine times in ten; 1000 for more."""
        if self.spread is None:
            return 1000
        for count in range(1, 1000):
            more = max(count - self.runs[0], 0)
            freedom = self.freedom + more * (1 if self.turns else 2)
            share = (1 if self.turns else 2) / count
            reach = t_quantile(0.5 + SURE / 2, freedom) + t_quantile(_POWER, freedom)
            if self.spread * math.sqrt(share) * reach <= math.log1p(effect):
                return count
        return 1000


def change_of_level(
    a: Sequence[RunLevel],
    b: Sequence[RunLevel],
    known: Spread | None = None,
    *,
    turns: bool = False,
    sure: float = SURE,
) -> StepChange:
    """Return how the level changed; see :func:`_change`."""
    return _change([run.level for run in a], [run.level for run in b], known or SHIPPED[turns], turns=turns, sure=sure)


def change_of_mean(
    a: Sequence[RunLevel], b: Sequence[RunLevel], *, turns: bool = False, sure: float = SURE
) -> StepChange:
    """Return how the mean changed, which also sees what makes one step in ten longer; it is noisier."""
    return _change([run.mean for run in a], [run.mean for run in b], SHIPPED_MEAN[turns], turns=turns, sure=sure)


def squares_of(a: Sequence[RunLevel], b: Sequence[RunLevel], *, turns: bool) -> tuple[float, int]:
    """Return the sum of squares of the levels about their means, and its degrees of freedom: what a history keeps."""
    x, y = np.array([run.level for run in a]), np.array([run.level for run in b])
    if turns:
        differences = y - x
        return float(((differences - differences.mean()) ** 2).sum()), len(differences) - 1
    return float(((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()), len(x) + len(y) - 2


def _change(a: Sequence[float], b: Sequence[float], known: Spread, *, turns: bool, sure: float) -> StepChange:
    """Return the change of the logarithms with its interval: Student's t on a pooled spread, or exact ranks.

    The spread of these runs is pooled with what is known of the machine, each by its degrees of freedom.
    """
    x, y = np.array(a), np.array(b)
    shift = float(y.mean() - x.mean())
    said = StepChange(
        a_ns=math.exp(x.mean()),
        b_ns=math.exp(y.mean()),
        change=math.expm1(shift),
        runs=(len(a), len(b)),
        verdict=NONE,
        turns=turns,
    )
    if min(len(a), len(b)) < 2 and not turns:
        return said
    if turns:
        squares, own, share = float(((y - x - shift) ** 2).sum()), len(a) - 1, 1 / len(a)
    else:
        squares = float(((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum())
        own, share = len(a) + len(b) - 2, 1 / len(a) + 1 / len(b)
    earlier = min(known.freedom, _MOST_FREEDOM)
    freedom = earlier + own
    spread = max(math.sqrt((earlier * known.size**2 + squares) / freedom), _LEAST)
    error, reach = spread * math.sqrt(share), t_quantile(0.5 + sure / 2, freedom)
    low, high = shift - reach * error, shift + reach * error
    if not turns and min(len(a), len(b)) >= _RANKS and (ranks := rank_interval(a, b, sure)):
        shift, low, high = ranks
    return msgspec.structs.replace(
        said,
        change=math.expm1(shift),
        low=math.expm1(low),
        high=math.expm1(high),
        detectable=math.expm1(error * (reach + t_quantile(_POWER, freedom))),
        spread=spread,
        spread_from="these runs" if own > earlier else known.source,
        freedom=freedom,
        verdict=SLOWER if low > 0 else FASTER if high < 0 else SAME,
    )
