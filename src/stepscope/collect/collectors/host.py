"""Counters of the process and its machine: CPU, memory, disk and network, sampled by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from stepscope.collect.collectors import host_asked

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Context
    from stepscope.collect.journal import Journal
    from stepscope.collect.options import Options

#: One reading: name, value, unit. A unit per second marks a total whose change is recorded.
_Reading = tuple[str, float, str]
_RATE = "bytes/s"
_RATES = frozenset((_RATE, "/s", "ms/s"))

#: Sources that cost more (0.1 to 0.3 ms) are read at every fifth sample only.
_SELDOM = 5

#: Seconds that stop waits for the thread.
_PATIENCE = 5.0


@dataclass
class _Source:
    """Some counters that are read together, every ``period_ns``; ``last_ns`` is the time of the last reading."""

    name: str
    read: Callable[[], Iterator[_Reading]]
    period_ns: int
    last_ns: int = 0
    recorded: bool = False


class HostCollector:
    """Samples CPU and memory ``Options.counters_hz`` times a second, the other counters at every fifth sample.

    ============================ ======== =====================================================
    process CPU                  %        of one core: 400 means four cores
    process memory               bytes    resident set
    process threads
    system CPU                   %        of all cores
    system memory used           bytes
    disk read, disk written      bytes/s  all disks
    network received, sent       bytes/s  all interfaces
    ============================ ======== =====================================================

    What ``host_sys`` and ``sys_io`` ask for besides is in :mod:`stepscope.collect.collectors.host_asked`.
    """

    name = "host"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._period_ns = 0
        self._sources: list[_Source] = []
        self._missing: dict[str, str] = {}
        self._totals: dict[str, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples = 0
        self._cost_ns = 0

    def available(self) -> str | None:
        """Return why nothing can be sampled here, or None."""
        return None if find_spec("psutil") else "psutil is not installed: pip install psutil."

    def prepare(self, context: Context) -> None:
        """Find out which counters this machine gives; the first reading also starts those that are differences."""
        self._journal = context.journal
        hertz = context.options.counters_hz
        if hertz > 0:
            self._period_ns = int(1e9 / hertz)
            self._sources = sources(self._period_ns, context.options)
            self._read(perf_counter_ns(), self._sources)

    def start(self) -> None:
        """Start the thread."""
        if self._sources:
            self._read(perf_counter_ns(), self._sources)
            self._thread = threading.Thread(target=self._run, name="stepscope-host", daemon=True)
            self._thread.start()

    def stop(self) -> list[Path]:
        """Take a last sample and end the thread; everything is in the journal.

        Raises:
            TimeoutError: The thread hangs in a reading. It ends by itself, and records nothing any more.
        """
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_PATIENCE)
            if thread.is_alive():
                self._journal = None
                message = f"A reading of the host's counters takes longer than {_PATIENCE:.0f} s."
                raise TimeoutError(message)
        return []

    def describe(self) -> dict[str, object]:
        """Return how often was sampled, its mean CPU time, and which counters are missing and why."""
        mean_ns = self._cost_ns // self._samples if self._samples else 0
        period_ms = self._period_ns / 1e6
        described: dict[str, object] = {"samples": self._samples, "sample_cost_ns": mean_ns, "period_ms": period_ms}
        return {**described, "missing": self._missing} if self._missing else described

    def _run(self) -> None:
        due = perf_counter_ns() + self._period_ns
        while not self._stop.wait(max(due - perf_counter_ns(), 0) / 1e9):
            now = perf_counter_ns()
            due = max(due, now) + self._period_ns
            almost = now + self._period_ns // 2
            self._sample(now, [source for source in self._sources if almost - source.last_ns >= source.period_ns])
        # Even a window shorter than the period gets one sample; but a rate over a moment says nothing.
        now = perf_counter_ns()
        enough = [source for source in self._sources if now - source.last_ns >= source.period_ns // 2]
        self._sample(now, [*enough, *(s for s in self._sources if not s.recorded and s not in enough)])

    def _sample(self, now_ns: int, sources: list[_Source]) -> None:
        cost_ns = thread_time_ns()
        readings = self._read(now_ns, sources)
        journal = self._journal
        if journal is not None and readings:
            for name, value, unit in readings:
                journal.counter(name, value, unit, name, at_ns=now_ns)
            for source in sources:
                source.recorded = True
            self._samples += 1
            self._cost_ns += thread_time_ns() - cost_ns

    def _read(self, now_ns: int, sources: list[_Source]) -> list[_Reading]:
        """Read these sources; one that fails is left out from now on, with its reason."""
        readings: list[_Reading] = []
        for source in tuple(sources):
            try:
                readings += [self._rate(now_ns, *item) if item[2] in _RATES else item for item in source.read()]
                source.last_ns = now_ns
            except Exception as error:  # noqa: BLE001, PERF203 - law 1: whatever a machine refuses, the others go on
                self._missing[source.name] = f"{type(error).__name__}: {error}"
                self._sources.remove(source)
        return readings

    def _rate(self, now_ns: int, name: str, total: float, unit: str) -> _Reading:
        before_ns, before = self._totals.get(name, (now_ns, total))
        self._totals[name] = now_ns, total
        seconds = (now_ns - before_ns) / 1e9
        # A total that falls is that of an interface or disk that went away.
        return name, max(total - before, 0.0) / seconds if seconds > 0 else 0.0, unit


def sources(period_ns: int, options: Options | None = None) -> list[_Source]:
    """Return what can be read, with how often; with what ``options`` ask for besides."""
    import psutil

    process = psutil.Process()
    cpu = _CpuPercent()

    def read_process() -> Iterator[_Reading]:
        yield "process CPU", cpu.read(), "%"
        yield "process memory", process.memory_info().rss, "bytes"

    def read_system() -> Iterator[_Reading]:
        yield "system CPU", psutil.cpu_percent(), "%"

    def read_threads() -> Iterator[_Reading]:
        yield "process threads", process.num_threads(), ""

    def read_memory() -> Iterator[_Reading]:
        yield "system memory used", psutil.virtual_memory().used, "bytes"

    def read_disk() -> Iterator[_Reading]:
        totals = _present(psutil.disk_io_counters(), "disk")
        yield "disk read", totals.read_bytes, _RATE
        yield "disk written", totals.write_bytes, _RATE

    def read_network() -> Iterator[_Reading]:
        totals = _present(psutil.net_io_counters(), "network")
        yield "network received", totals.bytes_recv, _RATE
        yield "network sent", totals.bytes_sent, _RATE

    asked = {} if options is None else host_asked.sources(options, process)
    often = {"process": read_process, "system CPU": read_system}
    seldom = {"threads": read_threads, "memory": read_memory, "disk": read_disk, "network": read_network}
    return [
        *(_Source(name, read, period_ns) for name, read in often.items()),
        *(_Source(name, read, _SELDOM * period_ns) for name, read in {**seldom, **asked}.items()),
    ]


class _CpuPercent:
    """CPU time of this process between two readings, in % of one core; psutil's takes 0.1 ms longer."""

    def __init__(self) -> None:
        self._wall, self._cpu = perf_counter_ns(), process_time_ns()

    def read(self) -> float:
        """Return the share since the last reading."""
        wall, cpu = perf_counter_ns(), process_time_ns()
        share = 100.0 * (cpu - self._cpu) / max(wall - self._wall, 1)
        self._wall, self._cpu = wall, cpu
        return share


def _present(totals: Any, what: str) -> Any:  # noqa: ANN401 - psutil's named tuples
    if totals is None:
        message = f"This machine shows no {what}."
        raise OSError(message)
    return totals
