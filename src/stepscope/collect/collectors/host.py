"""Counters of the process and its machine: CPU, memory, disk and network, sampled by a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any

from stepscope.collect.collectors import host_asked
from stepscope.collect.collectors.sampling import Reading, Sampler, Source

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Context
    from stepscope.collect.options import Options

_RATE = "bytes/s"

#: Sources that cost more (0.1 to 0.3 ms) are read at every fifth sample only.
_SELDOM = 5


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
        self._sampler: Sampler | None = None

    def available(self) -> str | None:
        """Return why nothing can be sampled here, or None."""
        return None if find_spec("psutil") else "psutil is not installed: pip install psutil."

    def prepare(self, context: Context) -> None:
        """Find out which counters this machine gives; the first reading also starts those that are differences."""
        hertz = context.options.counters_hz
        if hertz > 0:
            period_ns = int(1e9 / hertz)
            self._sampler = Sampler(context.journal, period_ns, sources(period_ns, context.options), "host")

    def start(self) -> None:
        """Start the thread."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> list[Path]:
        """Take a last sample and end the thread; everything is in the journal.

        Raises:
            TimeoutError: The thread hangs in a reading. It ends by itself, and records nothing any more.
        """
        if self._sampler is not None:
            self._sampler.stop()
        return []

    def describe(self) -> dict[str, object]:
        """Return how often was sampled, its mean CPU time, and which counters are missing and why."""
        return self._sampler.describe() if self._sampler is not None else {"samples": 0}


def sources(period_ns: int, options: Options | None = None) -> list[Source]:
    """Return what can be read, with how often; with what ``options`` ask for besides."""
    import psutil

    process = psutil.Process()
    cpu = _CpuPercent()

    def read_process() -> Iterator[Reading]:
        yield "process CPU", cpu.read(), "%"
        yield "process memory", process.memory_info().rss, "bytes"

    def read_system() -> Iterator[Reading]:
        yield "system CPU", psutil.cpu_percent(), "%"

    def read_threads() -> Iterator[Reading]:
        yield "process threads", process.num_threads(), ""

    def read_memory() -> Iterator[Reading]:
        yield "system memory used", psutil.virtual_memory().used, "bytes"

    def read_disk() -> Iterator[Reading]:
        totals = _present(psutil.disk_io_counters(), "disk")
        yield "disk read", totals.read_bytes, _RATE
        yield "disk written", totals.write_bytes, _RATE

    def read_network() -> Iterator[Reading]:
        totals = _present(psutil.net_io_counters(), "network")
        yield "network received", totals.bytes_recv, _RATE
        yield "network sent", totals.bytes_sent, _RATE

    asked = {} if options is None else host_asked.sources(options, process)
    often = {"process": read_process, "system CPU": read_system}
    seldom = {"threads": read_threads, "memory": read_memory, "disk": read_disk, "network": read_network}
    return [
        *(Source(name, read, period_ns) for name, read in often.items()),
        *(Source(name, read, _SELDOM * period_ns) for name, read in {**seldom, **asked}.items()),
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
