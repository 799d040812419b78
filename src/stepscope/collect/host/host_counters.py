"""Counters of the process and its machine: CPU, memory, disk and network, sampled on a separate thread."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Any

from stepscope.collect.host import asked_counters
from stepscope.collect.host.sampling import CounterSource, Reading, Sampler

if TYPE_CHECKING:
    from stepscope.collect.options import Options
    from stepscope.collect.protocol import Context

_RATE = "bytes/s"

#: Slower sources (together 0.8 ms with cold caches) are read at every tenth sample only.
_SELDOM = 10


#: A file of the library psutil, which tells it from another module of that name.
_OF_PSUTIL = "_common.py"


class HostCollector:
    """Samples CPU and memory ``Options.counters_hz`` times a second, the other counters at every tenth sample.

    ============================ ======== =====================================================
    process CPU                  %        of one core: 400 means four cores
    process memory               bytes    resident set
    process threads
    system CPU                   %        of all cores
    other CPU                    %        of one core: processes that are neither this one nor its children
    system memory used           bytes
    disk read, disk written      bytes/s  all disks
    network received, sent       bytes/s  all interfaces
    ============================ ======== =====================================================

    :mod:`stepscope.collect.host.asked_counters` has the further counters of ``host_sys`` and ``sys_io``.
    """

    name = "host"

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def available(self) -> str | None:
        """Return why nothing can be sampled here, or None."""
        loaded = sys.modules.get("psutil")
        spec = find_spec("psutil") if loaded is None else loaded.__spec__
        if spec is None:
            return "psutil is not installed: pip install psutil."
        # A file of that name beside the program is the program's: it is not to be run.
        parts = spec.submodule_search_locations or [""]
        return (
            None if (Path(parts[0]) / _OF_PSUTIL).exists() else f"psutil is a module of the program's: {spec.origin}."
        )

    def prepare(self, context: Context) -> None:
        """Find the counters of this machine; the first reading is also the base of counters that are differences."""
        hertz = context.options.counters_hz
        if hertz > 0:
            period_ns = int(1e9 / hertz)
            self._sampler = Sampler(context.journal, period_ns, sources(period_ns, context.options), "host")

    def start(self) -> None:
        """Start the thread."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> list[Path]:
        """Take a last sample and end the thread; all samples are in the journal.

        Raises:
            TimeoutError: The thread hangs in a reading. It records nothing more, and ends after the reading.
        """
        if self._sampler is not None:
            self._sampler.stop()
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of samples, their mean CPU time, and the missing counters with reasons."""
        return self._sampler.describe() if self._sampler is not None else {"samples": 0}


def sources(period_ns: int, options: Options | None = None) -> list[CounterSource]:
    """Return the counters of this machine with their periods, and those that ``options`` request."""
    import psutil

    process = psutil.Process()
    cpu, others = _CpuPercent(), _OtherCpuPercent()
    linux = sys.platform == "linux"
    resident: Callable[[], int] = _resident if linux else lambda: process.memory_info().rss
    system: Callable[[], float] = _SystemCpuPercent().read if linux else psutil.cpu_percent

    def read_process() -> Iterator[Reading]:
        yield "process CPU", cpu.read(), "%"
        yield "process memory", resident(), "bytes"

    def read_system() -> Iterator[Reading]:
        yield "system CPU", system(), "%"

    def read_others() -> Iterator[Reading]:
        yield "other CPU", others.read(), "%"

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

    asked = {} if options is None else asked_counters.sources(options, process)
    often = {"process": read_process, "system CPU": read_system, **({"other CPU": read_others} if linux else {})}
    seldom = {"threads": read_threads, "memory": read_memory, "disk": read_disk, "network": read_network}
    return [
        *(CounterSource(name, read, period_ns) for name, read in often.items()),
        *(CounterSource(name, read, _SELDOM * period_ns) for name, read in {**seldom, **asked}.items()),
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


# The readings of every sample, without psutil, which takes twice as long (0.2 ms more with cold caches) because it
# parses whole files and has more code.


def _head(path: str) -> bytes:
    """Return the beginning of a file of ``/proc``."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 512)
    finally:
        os.close(file)


def _resident() -> int:
    """Return the resident set of this process in bytes (proc(5), ``statm``)."""
    return int(_head("/proc/self/statm").split(None, 2)[1]) * os.sysconf("SC_PAGE_SIZE")


def _machine_ticks() -> list[int]:
    """Return the time of all cores since boot in user, nice, system, idle, iowait, irq, softirq and steal (proc(5))."""
    return [int(time) for time in _head("/proc/stat").split(b"\n", 1)[0].split()[1:9]]


class _SystemCpuPercent:
    """Time that cores were neither idle nor waiting for disks between two readings, in % of all (proc(5), ``stat``)."""

    def __init__(self) -> None:
        self._idle = self._all = 0

    def read(self) -> float:
        """Return the share since the last reading."""
        times = _machine_ticks()
        idle, together = sum(times[3:5]), sum(times)
        rested, passed = idle - self._idle, together - self._all
        self._idle, self._all = idle, together
        # Clamped: the clock has only 100 ticks per second, and the time of iowait may decrease.
        return min(max(100.0 * (1 - rested / passed), 0.0), 100.0) if passed > 0 else 0.0


class _OtherCpuPercent:
    """CPU time of all processes but this one and its children between two readings, in % of one core.

    Workers of a data loader are children: a core that they take is not taken by somebody else.
    """

    def __init__(self) -> None:
        self._children: dict[bytes, int] = {}
        self._wall = self._busy = self._own = 0

    def read(self) -> float:
        """Return the share since the last reading.

        Raises:
            OSError: The kernel does not list children (CONFIG_PROC_CHILDREN).
        """
        times, wall = _machine_ticks(), perf_counter_ns()
        tick = 10**9 // os.sysconf("SC_CLK_TCK")
        busy = (sum(times) - sum(times[3:5])) * tick
        own = process_time_ns() + self._children_ns(tick)
        share = 100.0 * (busy - self._busy - own + self._own) / max(wall - self._wall, 1)
        self._wall, self._busy, self._own = wall, busy, own
        return max(share, 0.0)

    def _children_ns(self, tick: int) -> int:
        """Return the CPU time of the children that the main thread has had, ended ones up to their last reading."""
        process = os.getpid()
        for child in _head(f"/proc/{process}/task/{process}/children").split():
            try:
                figures = _head(f"/proc/{child.decode()}/stat").rpartition(b")")[2].split()
            except OSError:  # it has just ended
                continue
            self._children[child] = (int(figures[11]) + int(figures[12])) * tick
        return sum(self._children.values())


def _present(totals: Any, what: str) -> Any:  # noqa: ANN401 - psutil's named tuples
    if totals is None:
        message = f"This machine shows no {what}."
        raise OSError(message)
    return totals
