"""Which parts of the step changed, beyond what changed all of them alike.

The machine cancels inside a run: a slower clock or a busy neighbour makes all parts slower by one common factor. What a
part takes beyond it is its own change, which one run a side can show. Measured figures: ``docs/compare.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from stepscope.comparison.levels import Floats
from stepscope.comparison.matching import SAME, Matched, match, plain_name
from stepscope.comparison.parts import OUTSIDE, StepPartLevel, StepParts

#: Spread of one part's time between two runs of a program, beyond the common factor: what it is worth in parts of this
#: comparison, and the least that is believed.
_SPREAD, _WORTH, _LEAST_SPREAD = 0.045, 4, 0.028
#: The same of Python, outside operators, which feels other processes more. And how much more all parts spread on a
#: machine whose threads wait for a core all the time: caches are cold after each wait.
_SPREAD_OUTSIDE, _WHEN_BUSY = 0.12, 2.0
#: A part changed for sure if its change is this many standard errors, and at least this part of the step.
SURE_ERRORS, LEAST = 3.0, 0.01
#: No part weighs more than this in the common factor: a large one that changed would carry all others with it.
_MOST_WEIGHT = 0.1
#: Calls of both sides are as many where those of one are at least this part of those of the other.
_AS_MANY = 0.9
#: Parts from this share of the step on show how far parts lie apart.
_TELLS = 0.01
#: A page fault takes about this long, ns. Where it falls is the luck of the heap, also with as many on both sides.
_FAULT_NS = 1_500


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """How one part of the step changed.

    Attributes:
        place: ``host`` or ``device``.
        phase: Phase of the step; empty if unknown.
        name_a: What it is called in A; empty if A has none. Several names are separated by `` + ``.
        name_b: What it is called in B.
        module: Module that ran it, where all of it is in one; else empty.
        matched: ``same``, ``other shapes``, ``same place``, ``only A`` or ``only B``.
        calls_a: Calls in the median step of A.
        calls_b: Calls in the median step of B.
        varies: Whether a run disagrees with itself on the number of calls.
        a_ns: Time a step in A.
        b_ns: Time a step in B.
        change_ns: Own change, beyond the common factor, on A's machine.
        low_ns: Lower end of its interval.
        high_ns: Upper end.
        errors: The change in standard errors; None of a part that only one side has, which needs no statistics.
        sure: Whether it changed for sure.
    """

    place: str
    phase: str
    name_a: str
    name_b: str
    module: str
    matched: str
    calls_a: float
    calls_b: float
    varies: bool
    a_ns: float
    b_ns: float
    change_ns: float
    low_ns: float
    high_ns: float
    errors: float | None
    sure: bool

    @property
    def name(self) -> str:
        """What to call it: ``relu -> gelu`` where the name changed."""
        if self.name_a and self.name_b and self.name_a != self.name_b:
            return f"{self.name_a} -> {self.name_b}"
        return self.name_b or self.name_a


class Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """An operator whose shapes changed: its name, and up to three distinct shapes of each side."""

    name: str
    a: list[str]
    b: list[str]


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of one phase or module together: own time on both sides, ns a step, and the own change; None if unknown."""

    name: str
    a_ns: float | None
    b_ns: float | None
    change_ns: float | None = None


class PartChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How the parts of the step changed.

    Attributes:
        common: Common factor of the parts that do the step's work, minus 1; None where no part is the same on both
            sides: then nothing is sure.
        change_ns: What those parts that surely changed add to the step, on A's machine; 0 if none did.
        low_ns: Lower end of its interval.
        high_ns: Upper end.
        parts: The parts; those that surely changed first, then by the size of the change.
        phases: The phases, in the order of the step.
        modules: The modules; empty where they were not recorded.
        shapes: What has other shapes.
        faults_ns: What page faults may explain of a difference, ns a step.
        spread: Spread between parts that is noise, as a fraction of their time.
    """

    common: float | None = None
    change_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    parts: list[PartChange] = []
    phases: list[Together] = []
    modules: list[Together] = []
    shapes: list[Shapes] = []
    faults_ns: float = 0.0
    spread: float | None = None

    @property
    def sure(self) -> list[PartChange]:
        """The parts that surely changed, largest first."""
        return [part for part in self.parts if part.sure]


@dataclass
class _Unit:
    """Parts that are told as one: those of one phase with one name, of every shape and module."""

    place: str
    phase: str
    name_a: str
    name_b: str
    matched: str
    modules: set[str] = field(default_factory=set)
    times: list[float] = field(default_factory=lambda: [0.0, 0.0])
    calls: list[float] = field(default_factory=lambda: [0.0, 0.0])
    variance: list[float] = field(default_factory=lambda: [0.0, 0.0])
    varies: bool = False

    def add(self, side: int, part: StepPartLevel, runs: int) -> None:
        """Add a part of A (0) or B (1), of one of so many runs."""
        self.times[side] += part.level_ns / runs
        self.calls[side] += part.calls / runs
        self.variance[side] += (part.error_ns / runs) ** 2
        self.varies |= part.varies
        self.modules.add(part.key.scope)


@dataclass(frozen=True)
class _Noise:
    """What makes unchanged parts of one place differ.

    Attributes:
        common: Logarithm of the common factor.
        spread: Spread of the parts about it.
        known: Whether parts that do the step's work and are the same on both sides tell it.
        faults_ns: What page faults may explain, which one operator may have all of.
        delay_ns: What waits for a core may explain in A and in B, likewise.
    """

    common: float
    spread: float
    known: bool = True
    faults_ns: float = 0.0
    delay_ns: tuple[float, float] = (0.0, 0.0)


def change_of_parts(a: Sequence[StepParts], b: Sequence[StepParts]) -> PartChanges:
    """Return how the parts changed, from the runs of each side, of one framework and device.

    A run without parts, whose program ended before its window, says nothing.
    """
    a, b = ([run for run in side if run.parts] or side for side in (a, b))
    matched = [match(mine.parts, theirs.parts) for mine, theirs in _paired(a, b)]
    units = _units(matched)
    step_ns = float(np.mean([run.step_ns for run in a]))
    faults = [run.faults for run in (*a, *b)]
    most = max((missed for missed in faults if missed is not None), default=0.0)
    share = (1 / len(a) + 1 / len(b)) / 2
    delays = float(np.mean([run.delay_ns for run in a])), float(np.mean([run.delay_ns for run in b]))
    busy, noise = max(run.delay_share for run in (*a, *b)), {}
    for place in dict.fromkeys(unit.place for unit in units):
        noise[place] = _noise([unit for unit in units if unit.place == place], share, 1 + _WHEN_BUSY * busy)
        if place == "host":
            noise[place] = replace(noise[place], faults_ns=most * _FAULT_NS, delay_ns=delays)
    works = "device" if a[0].on_device and "device" in noise else "host"
    known = works in noise and noise[works].known
    changes = [_change(unit, replace(noise[unit.place], known=known), step_ns) for unit in units]
    sure = [change for change in changes if change.sure and change.place == works]
    total = sum(change.change_ns for change in sure)
    half = math.sqrt(sum(((change.high_ns - change.low_ns) / 2) ** 2 for change in sure))
    return PartChanges(
        common=math.expm1(noise[works].common) if known else None,
        change_ns=total,
        low_ns=total - half,
        high_ns=total + half,
        parts=sorted(changes, key=lambda part: (not part.sure, -abs(part.change_ns))),
        phases=phases_together(a, b, [change for change in changes if change.place == works]),
        modules=_modules(units, noise, works),
        shapes=_shapes(matched[0]),
        faults_ns=most * _FAULT_NS,
        spread=noise[works].spread if works in noise else None,
    )


def phases_together(
    a: Sequence[StepParts], b: Sequence[StepParts], changes: Sequence[PartChange] = ()
) -> list[Together]:
    """Return the phases of both sides; this needs no operators, so that it also holds across frameworks."""
    names = list(dict.fromkeys(name for run in (*a, *b) for name in run.phases))
    own = {name: [change.change_ns for change in changes if change.phase == name] for name in names}
    return [
        Together(
            name=name,
            a_ns=_known_mean(run.phases.get(name) for run in a),
            b_ns=_known_mean(run.phases.get(name) for run in b),
            change_ns=sum(own[name]) if own[name] else None,
        )
        for name in names
    ]


def _paired(a: Sequence[StepParts], b: Sequence[StepParts]) -> list[tuple[StepParts, StepParts]]:
    """Pair the runs so that each occurs; those of the smaller side as often as it takes."""
    return [(a[place % len(a)], b[place % len(b)]) for place in range(max(len(a), len(b)))]


def _units(matched: Sequence[Matched]) -> list[_Unit]:
    """Gather matched parts by place, phase and names; the times are means over the runs."""
    units: dict[tuple[str, ...], _Unit] = {}

    def add(side: int, part: StepPartLevel, names: tuple[str, str], how: str) -> None:
        key = (part.key.place, part.key.phase, *names)
        units.setdefault(key, _Unit(*key, how)).add(side, part, len(matched))

    for one in matched:
        for pair in one.pairs:
            names = (_names(pair.a), _names(pair.b))
            names = (names[1], names[1]) if pair.how != SAME and plain_name(names[0]) == plain_name(names[1]) else names
            for side, parts in enumerate((pair.a, pair.b)):
                for part in parts:
                    add(side, part, names, pair.how)
        for side, parts in enumerate((one.only_a, one.only_b)):
            for part in parts:
                add(side, part, (part.key.name, "") if side == 0 else ("", part.key.name), f"only {'AB'[side]}")
    return list(units.values())


def _names(parts: Sequence[StepPartLevel]) -> str:
    return " + ".join(dict.fromkeys(part.key.name for part in parts))


def _noise(units: Sequence[_Unit], share: float, busier: float) -> _Noise:
    """Return the units' common factor, the weighted median of their ratios, and how far they lie apart.

    What has another name on each side, or is called more or less often, is other work: it tells nothing of the machine.
    """
    both = [
        unit
        for unit in units
        if min(unit.times) > 0
        and unit.name_a == unit.name_b != OUTSIDE
        and min(unit.calls) >= _AS_MANY * max(unit.calls)
    ]
    if not both:
        return _Noise(0.0, _SPREAD * math.sqrt(share) * busier, known=False)
    times = np.array([unit.times for unit in both])
    ratios, shares = np.log(times[:, 1] / times[:, 0]), times.sum(axis=1) / times.sum()
    common = _weighted_median(ratios, np.minimum(shares, _MOST_WEIGHT))
    telling = np.abs(ratios - common)[shares > _TELLS]
    seen = 1.4826 * float(np.median(telling)) if len(telling) > 2 else _SPREAD * math.sqrt(share)
    count = len(telling)
    spread = math.sqrt((_WORTH * share * _SPREAD**2 + count * seen**2) / (_WORTH + count))
    return _Noise(common, max(spread, _LEAST_SPREAD * math.sqrt(share)) * busier)


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _change(unit: _Unit, noise: _Noise, step_ns: float) -> PartChange:
    a, b = unit.times
    own_b = b * math.exp(-noise.common)
    change = own_b - a
    inside = math.sqrt(unit.variance[0] + unit.variance[1] * math.exp(-2 * noise.common))
    if min(a, b) > 0:
        spread = max(noise.spread, _SPREAD_OUTSIDE) if unit.name_a == OUTSIDE else noise.spread
        error = math.hypot(min(a, own_b) * spread, inside)
        errors, certain = change / error if error else 0.0, abs(change) > SURE_ERRORS * error
    else:
        error, errors, certain = inside, None, True
    excused = max(noise.delay_ns) + (noise.faults_ns if errors is not None else 0.0)
    large = abs(change) >= LEAST * step_ns + excused
    modules = unit.modules - {""}
    return PartChange(
        place=unit.place,
        phase=unit.phase,
        name_a=unit.name_a,
        name_b=unit.name_b,
        module=next(iter(modules)) if len(modules) == 1 and unit.place == "host" else "",
        matched=unit.matched,
        calls_a=unit.calls[0],
        calls_b=unit.calls[1],
        varies=unit.varies,
        a_ns=a,
        b_ns=b,
        change_ns=change,
        low_ns=change - 2 * error,
        high_ns=change + 2 * error,
        errors=errors,
        sure=bool(certain and large and noise.known),
    )


def _modules(units: Sequence[_Unit], noise: dict[str, _Noise], works: str) -> list[Together]:
    found: dict[str, list[float]] = {}
    for unit in units:
        if unit.place == "host" and len(unit.modules - {""}) == 1:
            times = found.setdefault(next(iter(unit.modules - {""})), [0.0, 0.0])
            times[0] += unit.times[0]
            times[1] += unit.times[1]
    factor = math.exp(-noise[works].common) if works in noise else 1.0
    return [
        Together(name=name, a_ns=a, b_ns=b, change_ns=b * factor - a if works == "host" else None)
        for name, (a, b) in found.items()
    ]


def _shapes(matched: Matched) -> list[Shapes]:
    found = []
    for pair in matched.pairs:
        a, b = ([*dict.fromkeys(part.key.shapes for part in parts if part.key.shapes)] for parts in (pair.a, pair.b))
        if pair.how != SAME and a and b and set(a) != set(b):
            found.append(Shapes(name=_names(pair.b), a=a[:3], b=b[:3]))
    return found


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
