"""Periodic sampling of counters into the journal, on a separate thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

from stepscope.collect.own_thread import OwnThread

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

#: One reading: name, value, unit.
Reading = tuple[str, float, str]

#: Units of rates: a source returns totals, whose rate of change is recorded, unless its `totals` is False.
_RATES = frozenset(("bytes/s", "/s", "ms/s"))

#: Seconds that ``stop`` waits for the thread.
PATIENCE = 5.0


@dataclass
class CounterSource:
    """Counters that are read together.

    Attributes:
        name: Name in the list of missing sources.
        read: Returns the readings of one moment.
        period_ns: Time between two readings.
        lane: Lane of its counters; empty gives each counter its own.
        totals: Whether values in a unit per second are totals.
        last_ns: Time of the last reading.
        recorded: Whether the journal has a value from it.
    """

    name: str
    read: Callable[[], Iterable[Reading]]
    period_ns: int
    lane: str = ""
    totals: bool = True
    last_ns: int = 0
    recorded: bool = False


class Sampler:
    """Samples sources until it is stopped; used once.

    Args:
        journal: Takes the counters.
        period_ns: Time between two checks for sources that are due.
        sources: The counters.
        what: Subject of the counters, for the thread's name and messages: ``host``.
    """

    def __init__(self, journal: Journal, period_ns: int, sources: list[CounterSource], what: str) -> None:
        self.missing: dict[str, str] = {}
        self._journal: Journal | None = journal
        self._period_ns = period_ns
        self._sources = sources
        self._what = what
        self._totals: dict[tuple[str, str], tuple[int, float]] = {}
        self._due = 0
        self._thread: OwnThread | None = None
        self._samples = 0
        self._cost_ns = 0

    def start(self) -> None:
        """Take the base of counters that are differences, and start the thread."""
        self._read(perf_counter_ns(), self._sources)
        self._due = perf_counter_ns() + self._period_ns
        self._thread = OwnThread(f"stepscope-{self._what}", self._sample_what_is_due)
        self._thread.start(self._period_ns / 1e9)

    def stop(self) -> None:
        """Take a last sample and end the thread.

        Raises:
            TimeoutError: The thread hangs in a reading. It records nothing more, and ends after the reading.
        """
        thread, self._thread = self._thread, None
        if thread is not None and not thread.stop(PATIENCE):
            self._journal = None
            message = f"A reading of the {self._what}'s counters takes longer than {PATIENCE:.0f} s."
            raise TimeoutError(message)

    def describe(self) -> dict[str, object]:
        """Return the number of samples, their mean CPU time, and the missing counters with reasons."""
        mean_ns = self._cost_ns // self._samples if self._samples else 0
        period_ms = self._period_ns / 1e6
        described: dict[str, object] = {"samples": self._samples, "sample_cost_ns": mean_ns, "period_ms": period_ms}
        return {**described, "missing": self.missing} if self.missing else described

    def _sample_what_is_due(self, last: bool) -> float:  # noqa: FBT001 - an OwnThread calls it
        now = perf_counter_ns()
        if last:
            # Rates over less than half a period are noise; only sources without any sample are read all the same.
            enough = [source for source in self._sources if now - source.last_ns >= source.period_ns // 2]
            self._sample(now, [*enough, *(s for s in self._sources if not s.recorded and s not in enough)])
        else:
            self._due = max(self._due, now) + self._period_ns
            almost = now + self._period_ns // 2
            self._sample(now, [source for source in self._sources if almost - source.last_ns >= source.period_ns])
        return max(self._due - perf_counter_ns(), 1) / 1e9

    def _sample(self, now_ns: int, sources: list[CounterSource]) -> None:
        cost_ns = thread_time_ns()
        readings = self._read(now_ns, sources)
        journal = self._journal
        if journal is not None and readings:
            for lane, (name, value, unit) in readings:
                journal.counter(name, value, unit, lane, at_ns=now_ns)
            for source in sources:
                source.recorded = True
            self._samples += 1
            self._cost_ns += thread_time_ns() - cost_ns

    def _read(self, now_ns: int, sources: list[CounterSource]) -> list[tuple[str, Reading]]:
        """Read these sources; a source that fails is removed, and its reason kept in ``missing``."""
        readings: list[tuple[str, Reading]] = []
        for source in tuple(sources):
            try:
                readings += [self._reading(source, now_ns, *item) for item in source.read()]
                source.last_ns = now_ns
            except Exception as error:  # noqa: BLE001 - law 1: the other sources go on
                self.missing[source.name] = f"{type(error).__name__}: {error}"
                self._sources.remove(source)
        return readings

    def _reading(self, source: CounterSource, now_ns: int, name: str, value: float, unit: str) -> tuple[str, Reading]:
        lane = source.lane or name
        if unit not in _RATES or not source.totals:
            return lane, (name, value, unit)
        before_ns, before = self._totals.get((lane, name), (now_ns, value))
        self._totals[lane, name] = now_ns, value
        seconds = (now_ns - before_ns) / 1e9
        # A total decreases if an interface or disk disappears; its rate is then 0.
        return lane, (name, max(value - before, 0.0) / seconds if seconds > 0 else 0.0, unit)
