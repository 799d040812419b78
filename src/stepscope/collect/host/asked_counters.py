"""Counters of the host that are sampled only if ``host_sys`` or ``sys_io`` requests them.

==================== ==================================== ======= ===============================================
asked for            counter                              unit
==================== ==================================== ======= ===============================================
host_sys ``cpu``     process CPU user, process CPU system ms/s    1000 is one core
host_sys ``mem``     process memory virtual, process swap bytes
host_sys ``disk``    process disk read, written           bytes/s what reached the disks for this process
host_sys ``network`` network packets in, out              /s      all interfaces; bytes are always sampled
host_sys ``osrt``    context switches, page faults        /s      of the process; voluntary or not, major or minor
..                   interrupts                           /s      of the machine
sys_io               *interface* received, sent           bytes/s and packets, errors, drops (/s)
..                   *adapter* received, sent             bytes/s InfiniBand and RoCE, if the kernel counts them
==================== ==================================== ======= ===============================================

``osrt`` has the counts of the operating system; tracing single system calls would need root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.collect.options import Options

_BYTES, _EVENTS, _TIME = "bytes/s", "/s", "ms/s"
_ADAPTERS = Path("/sys/class/infiniband")
_STATUS = Path("/proc/self/status")
#: The kernel counts the data of InfiniBand ports in units of four bytes.
_WORD = 4

Reading = tuple[str, float, str]
Read = Callable[[], Iterator[Reading]]


def sources(options: Options, process: Any) -> dict[str, Read]:  # noqa: ANN401 - psutil has no types
    """Return the counters that the options request, by name.

    Args:
        options: Which counters to read.
        process: ``psutil.Process`` of this process.
    """
    known: dict[str, Read] = {
        "cpu": lambda: _cpu(process),
        "mem": lambda: _memory(process),
        "disk": lambda: _disk(process),
        "network": _network,
        "osrt": lambda: _system(process),
    }
    asked = {f"host_sys {name}": known[name] for name in options.host_sys if name in known}
    return {**asked, "sys_io": _interfaces} if options.sys_io else asked


def _cpu(process: Any) -> Iterator[Reading]:  # noqa: ANN401
    times = process.cpu_times()
    yield "process CPU user", 1000 * times.user, _TIME
    yield "process CPU system", 1000 * times.system, _TIME


def _memory(process: Any) -> Iterator[Reading]:  # noqa: ANN401
    yield "process memory virtual", process.memory_info().vms, "bytes"
    # Not psutil: it sums over all mappings, which locks them against changes by the process meanwhile.
    for line in _STATUS.read_bytes().splitlines() if _STATUS.exists() else ():
        if line.startswith(b"VmSwap:"):
            yield "process swap", 1024 * int(line.split()[1]), "bytes"


def _disk(process: Any) -> Iterator[Reading]:  # noqa: ANN401
    totals = process.io_counters()
    yield "process disk read", totals.read_bytes, _BYTES
    yield "process disk written", totals.write_bytes, _BYTES


def _network() -> Iterator[Reading]:
    import psutil

    totals = psutil.net_io_counters()
    yield "network packets in", totals.packets_recv, _EVENTS
    yield "network packets out", totals.packets_sent, _EVENTS


def _system(process: Any) -> Iterator[Reading]:  # noqa: ANN401
    import psutil

    switches = process.num_ctx_switches()
    yield "context switches voluntary", switches.voluntary, _EVENTS
    yield "context switches involuntary", switches.involuntary, _EVENTS
    yield "interrupts", psutil.cpu_stats().interrupts, _EVENTS
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "page faults major", usage.ru_majflt, _EVENTS
    yield "page faults minor", usage.ru_minflt, _EVENTS


def _interfaces() -> Iterator[Reading]:
    import psutil

    for name, totals in psutil.net_io_counters(pernic=True).items():
        yield f"{name} received", totals.bytes_recv, _BYTES
        yield f"{name} sent", totals.bytes_sent, _BYTES
        yield f"{name} packets in", totals.packets_recv, _EVENTS
        yield f"{name} packets out", totals.packets_sent, _EVENTS
        yield f"{name} errors", totals.errin + totals.errout, _EVENTS
        yield f"{name} drops", totals.dropin + totals.dropout, _EVENTS
    yield from adapter_readings(_ADAPTERS)


def adapter_readings(directory: Path) -> Iterator[Reading]:
    """Read the ports of InfiniBand and RoCE adapters below ``directory``."""
    for port in sorted(directory.glob("*/ports/*")):
        name = port.parent.parent.name if port.name == "1" else f"{port.parent.parent.name} port {port.name}"
        for file, direction in (("port_rcv_data", "received"), ("port_xmit_data", "sent")):
            path = port / "counters" / file
            if path.is_file():
                yield f"{name} {direction}", _WORD * int(path.read_text()), _BYTES
