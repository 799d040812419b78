"""Counters of the process and its machine: CPU, memory, disk and network, sampled by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Context
    from stepscope.collect.journal import Journal

#: One sample of a source: (name, value, unit). A unit in bytes/s marks a total whose change is recorded.
_Sample = tuple[str, float, str]
_RATE = "bytes/s"

#: Seconds that stop waits for the thread; a sample takes a third of a millisecond.
_PATIENCE = 5.0


class HostCollector:
    """Samples the counters ``Options.counters_hz`` times a second.

    ============================ ======== =====================================================
    process CPU                  %        of one core: 400 means four cores
    process memory               bytes    resident set
    process threads
    system CPU                   %        of all cores
    system memory used           bytes
    disk read, disk written      bytes/s  all disks
    network received, sent       bytes/s  all interfaces
    ============================ ======== =====================================================
    """

    name = "host"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._period = 0.0
        self._sources: dict[str, Callable[[], Iterator[_Sample]]] = {}
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
        self._period = 1 / hertz if hertz > 0 else 0.0
        if self._period:
            self._sources = _sources()
            self._read(perf_counter_ns())

    def start(self) -> None:
        """Start the thread."""
        if self._sources:
            self._read(perf_counter_ns())
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
        period_ms = round(self._period * 1e3, 3)
        described: dict[str, object] = {"samples": self._samples, "sample_cost_ns": mean_ns, "period_ms": period_ms}
        return {**described, "missing": self._missing} if self._missing else described

    def _run(self) -> None:
        begin = due = perf_counter_ns()
        step = int(self._period * 1e9)
        last = begin
        while not self._stop.wait(max(due + step - perf_counter_ns(), 0) / 1e9):
            due = max(due + step, perf_counter_ns() - step)
            last = perf_counter_ns()
            self._sample(last)
        # A window shorter than the period still gets one sample; a rate over a moment says nothing.
        now = perf_counter_ns()
        if now - last > step // 2 or last == begin:
            self._sample(now)

    def _sample(self, now_ns: int) -> None:
        cost_ns = thread_time_ns()
        readings = self._read(now_ns)
        journal = self._journal
        if journal is not None:
            for name, value, unit in readings:
                journal.counter(name, value, unit, name, at_ns=now_ns)
            self._samples += 1
            self._cost_ns += thread_time_ns() - cost_ns

    def _read(self, now_ns: int) -> list[_Sample]:
        """Read all sources; one that fails is left out from now on, with its reason."""
        readings: list[_Sample] = []
        for source, read in list(self._sources.items()):
            try:
                readings += [self._rate(now_ns, *sample) if sample[2] == _RATE else sample for sample in read()]
            except Exception as error:  # noqa: BLE001, PERF203 - law 1: whatever a machine refuses, the others go on
                self._missing[source] = f"{type(error).__name__}: {error}"
                del self._sources[source]
        return readings

    def _rate(self, now_ns: int, name: str, total: float, unit: str) -> _Sample:
        before_ns, before = self._totals.get(name, (now_ns, total))
        self._totals[name] = now_ns, total
        seconds = (now_ns - before_ns) / 1e9
        # A total that falls is that of an interface or disk that went away.
        return name, max(total - before, 0.0) / seconds if seconds > 0 else 0.0, unit


def _sources() -> dict[str, Callable[[], Iterator[_Sample]]]:
    """Return the functions that read each source."""
    import psutil

    process = psutil.Process()

    def read_process() -> Iterator[_Sample]:
        with process.oneshot():
            yield "process CPU", process.cpu_percent(), "%"
            yield "process memory", process.memory_info().rss, "bytes"
            yield "process threads", process.num_threads(), ""

    def read_system() -> Iterator[_Sample]:
        yield "system CPU", psutil.cpu_percent(), "%"
        yield "system memory used", psutil.virtual_memory().used, "bytes"

    def read_disk() -> Iterator[_Sample]:
        totals = _present(psutil.disk_io_counters(), "disk")
        yield "disk read", totals.read_bytes, _RATE
        yield "disk written", totals.write_bytes, _RATE

    def read_network() -> Iterator[_Sample]:
        totals = _present(psutil.net_io_counters(), "network")
        yield "network received", totals.bytes_recv, _RATE
        yield "network sent", totals.bytes_sent, _RATE

    return {"process": read_process, "system": read_system, "disk": read_disk, "network": read_network}


def _present(totals: Any, what: str) -> Any:  # noqa: ANN401 - psutil's named tuples
    if totals is None:
        message = f"This machine shows no {what}."
        raise OSError(message)
    return totals
