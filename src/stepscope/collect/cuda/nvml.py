"""Counters of the GPUs that the program can see, sampled on a separate thread with NVIDIA's management library (NVML).

A single process samples all of them, a rank of a job the one of its local rank. Each GPU has a lane, ``GPU 0``, in the
order of ``CUDA_VISIBLE_DEVICES``.

=========== ================================== ======== =======================================================
always      GPU busy, memory busy              %        of the time: any kernel runs; memory is read or written
..          memory used                        bytes    by all processes
..          power                              W
..          temperature, memory temperature    °C
..          SM clock, memory clock             MHz
..          slowed by …                        0 or 1   power cap, heat, power brake, other hardware, sync boost
NVLink      NVLink sent, NVLink received       bytes/s  all links together
Hopper on   SM busy, SM occupancy, tensor busy %        of the multiprocessors, of their warps, of the time
..          HBM busy                           %        of what the memory can carry
..          HBM traffic                        bytes/s  that share of the bandwidth of its clock and width
..          PCIe sent, PCIe received           bytes/s
``pcie``    PCIe sent, PCIe received           bytes/s  if the GPU has no such counters; averages over 20 ms
=========== ================================== ======== =======================================================

Hopper and later GPUs are read through hardware counters (GPM), others through field values. The manifest lists the
names that a GPU does not support. The Python package is ``nvidia-ml-py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.collect.host.sampling import CounterSource, Reading, Sampler
from stepscope.collect.protocol import NothingHere
from stepscope.collect.ranks import JobRank, find_job_rank

if TYPE_CHECKING:
    from stepscope.collect.options import Options
    from stepscope.collect.protocol import Context

_T = TypeVar("_T")

#: Device files of NVIDIA's driver: on Linux, and in the Windows Subsystem for Linux.
_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
#: The library's units: PCIe in thousands of bytes, NVLink in KiB, GPM in MiB.
_KB, _KIB, _MIB = 1000, 1024, 1 << 20

#: Least ns between two samples: GPM needs two samples at least 0.1 s apart.
_SHORTEST = 100_000_000
#: Sources that are slow in the driver are read at every fifth sample only.
_SELDOM = 5

#: Bits of the clocks' event reasons.
_REASONS = {
    "power cap": 0x04,
    "other hardware": 0x08,
    "sync boost": 0x10,
    "heat": 0x20 | 0x40,
    "power brake": 0x80,
}
#: Fields of ``nvmlDeviceGetFieldValues``: temperature of the memory; NVLink's data of all links together, in KiB.
_MEMORY_TEMPERATURE, _NVLINK_SENT, _NVLINK_RECEIVED = 82, 138, 139
_ALL_LINKS = 0xFFFFFFFF
#: Metrics of GPM: name, unit, factor.
_GPM = {
    2: ("SM busy", "%", 1),
    3: ("SM occupancy", "%", 1),
    5: ("tensor busy", "%", 1),
    10: ("HBM busy", "%", 1),
    20: ("PCIe sent", "bytes/s", _MIB),
    21: ("PCIe received", "bytes/s", _MIB),
    60: ("NVLink received", "bytes/s", _MIB),
    61: ("NVLink sent", "bytes/s", _MIB),
}
_HBM_BUSY = 10


class NvmlCollector:
    """Samples the GPUs of this rank ``Options.counters_hz`` times a second, ten times at most."""

    name = "nvml"

    def __init__(self) -> None:
        self._library: Any = None
        self._gpus: list[_Gpu] = []
        self._sampler: Sampler | None = None
        self._description: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why GPUs cannot be sampled here, or None."""
        if sys.platform != "win32" and not any(path.exists() for path in _DEVICES):
            return NothingHere("this machine has no NVIDIA GPU")
        return None if find_spec("pynvml") else "nvidia-ml-py is not installed: pip install nvidia-ml-py."

    def prepare(self, context: Context) -> None:
        """Load the library, and find the GPUs and the counters of each.

        Raises:
            pynvml.NVMLError: The driver does not answer.
        """
        options = context.options
        if options.counters_hz <= 0:
            return
        library = import_module("pynvml")
        library.nvmlInit()
        self._library = library
        period_ns = max(int(1e9 / options.counters_hz), _SHORTEST)
        handles = _visible(library, os.environ.get("CUDA_VISIBLE_DEVICES"))
        own = of_rank(handles, find_job_rank())
        self._gpus = [_Gpu(library, handle, f"GPU {number}") for number, handle in own.items()]
        sources = [source for gpu in self._gpus for source in gpu.sources(period_ns, options)]
        self._description = {"gpus": len(self._gpus), "driver": _text(library.nvmlSystemGetDriverVersion())}
        self._sampler = Sampler(context.journal, period_ns, sources, "GPU")

    def start(self) -> None:
        """Start the thread."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> list[Path]:
        """End the thread and close the library; all samples are in the journal.

        Raises:
            TimeoutError: The driver hangs. The thread records nothing more, and ends when the driver returns.
        """
        if self._sampler is not None:
            self._sampler.stop()
        library, self._library = self._library, None
        if library is not None:
            for gpu in self._gpus:
                gpu.close()
            library.nvmlShutdown()
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of GPUs, the sampling facts, and the counters that a GPU does not support."""
        return {**self._description, **(self._sampler.describe() if self._sampler is not None else {})}


class _Gpu:
    """One GPU.

    Args:
        library: ``pynvml``.
        handle: Its handle for the GPU.
        lane: Name of the lane.
    """

    def __init__(self, library: Any, handle: Any, lane: str) -> None:  # noqa: ANN401 - pynvml has no types
        self._library = library
        self._handle = handle
        self._lane = lane
        self._samples: list[Any] = []
        self._sampled_ns = 0

    def sources(self, period_ns: int, options: Options) -> list[CounterSource]:
        """Return the sources of this GPU."""
        gpm = self._has_gpm()
        often: dict[str, Callable[[], Iterator[Reading]]] = {"utilisation": self._utilisation, "memory": self._memory}
        seldom = {
            "power": self._power,
            "temperature": self._temperature,
            "memory temperature": self._memory_temperature,
            "clocks": self._clocks,
            "reasons": self._reasons,
        }
        if options.pcie and not gpm:
            seldom["PCIe"] = self._pcie
        found = [self._source(name, read, period_ns) for name, read in often.items()]
        found += [self._source(name, read, _SELDOM * period_ns) for name, read in seldom.items()]
        for source in found:
            source.totals = False
        if gpm:
            found.append(CounterSource(f"{self._lane} GPM", self._gpm, period_ns, self._lane, totals=False))
        else:
            found.append(self._source("NVLink", self._nvlink, period_ns))
        return found

    def close(self) -> None:
        """Free the samples of GPM."""
        while self._samples:
            self._library.nvmlGpmSampleFree(self._samples.pop())

    def _source(self, name: str, read: Callable[[], Iterator[Reading]], period_ns: int) -> CounterSource:
        return CounterSource(f"{self._lane} {name}", read, period_ns, self._lane)

    def _utilisation(self) -> Iterator[Reading]:
        rates = self._library.nvmlDeviceGetUtilizationRates(self._handle)
        yield "GPU busy", rates.gpu, "%"
        yield "memory busy", rates.memory, "%"

    def _memory(self) -> Iterator[Reading]:
        yield "memory used", self._library.nvmlDeviceGetMemoryInfo(self._handle).used, "bytes"

    def _power(self) -> Iterator[Reading]:
        yield "power", self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000, "W"

    def _temperature(self) -> Iterator[Reading]:
        sensor = self._library.NVML_TEMPERATURE_GPU
        yield "temperature", self._library.nvmlDeviceGetTemperature(self._handle, sensor), "°C"

    def _memory_temperature(self) -> Iterator[Reading]:
        (value,) = self._fields(_MEMORY_TEMPERATURE)
        yield "memory temperature", value, "°C"

    def _clocks(self) -> Iterator[Reading]:
        library = self._library
        yield "SM clock", library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM), "MHz"
        yield "memory clock", library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_MEM), "MHz"

    def _reasons(self) -> Iterator[Reading]:
        bits = self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        for name, mask in _REASONS.items():
            yield f"slowed by {name}", float(bool(bits & mask)), ""

    def _pcie(self) -> Iterator[Reading]:
        library = self._library
        directions = ("received", library.NVML_PCIE_UTIL_RX_BYTES), ("sent", library.NVML_PCIE_UTIL_TX_BYTES)
        for name, code in directions:
            yield f"PCIe {name}", _KB * library.nvmlDeviceGetPcieThroughput(self._handle, code), "bytes/s"

    def _nvlink(self) -> Iterator[Reading]:
        sent, received = self._fields((_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS))
        yield "NVLink sent", _KIB * sent, "bytes/s"
        yield "NVLink received", _KIB * received, "bytes/s"

    def _fields(self, *fields: Any) -> list[float]:  # noqa: ANN401 - numbers, or pairs with a scope
        """Return values of fields.

        Raises:
            pynvml.NVMLError: The GPU does not support one of them.
        """
        values = self._library.nvmlDeviceGetFieldValues(self._handle, list(fields))
        for value in values:
            if value.nvmlReturn:
                raise self._library.NVMLError(value.nvmlReturn)
        return [_number(value) for value in values]

    def _has_gpm(self) -> bool:
        """Return whether the GPU supports GPM; if so, take the first sample."""
        library = self._library
        try:
            if not library.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return False
            self._samples = [library.nvmlGpmSampleAlloc() for _ in range(2)]
            library.nvmlGpmSampleGet(self._handle, self._samples[0])
            self._sampled_ns = perf_counter_ns()
        except (library.NVMLError, AttributeError):  # an older driver, or package
            self.close()
            return False
        return True

    def _gpm(self) -> Iterator[Reading]:
        """Compare the hardware counters with those of the last reading, if it is at least 0.1 s old."""
        library, now_ns = self._library, perf_counter_ns()
        if now_ns - self._sampled_ns < _SHORTEST:
            return
        last, now = self._samples
        library.nvmlGpmSampleGet(self._handle, now)
        asked = library.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        asked.sample1, asked.sample2 = last, now
        for index, number in enumerate(_GPM):
            asked.metrics[index].metricId = number
        self._samples.reverse()
        self._sampled_ns = now_ns
        library.nvmlGpmMetricsGet(asked)
        for index, (number, (name, unit, factor)) in enumerate(_GPM.items()):
            metric = asked.metrics[index]
            if metric.nvmlReturn == library.NVML_SUCCESS and metric.value == metric.value:  # not NaN
                yield name, factor * metric.value, unit
                if number == _HBM_BUSY:
                    yield "HBM traffic", metric.value / 100 * self._bandwidth(), "bytes/s"

    def _bandwidth(self) -> float:
        """Return the peak bandwidth of the memory in bytes/s: twice its clock times its width."""
        library = self._library
        clock = library.nvmlDeviceGetMaxClockInfo(self._handle, library.NVML_CLOCK_MEM)
        return float(2 * 1e6 * clock * library.nvmlDeviceGetMemoryBusWidth(self._handle) / 8)


def of_rank(gpus: Sequence[_T], place: JobRank) -> dict[int, _T]:
    """Return the visible GPUs that a rank samples, by number.

    Ranks that all see the same GPUs of a machine train on one each, by local rank; each samples its own.

    Args:
        gpus: The GPUs that the process can see.
        place: The process in its job.
    """
    if place.world_size > 1 and place.local_rank < len(gpus):
        return {place.local_rank: gpus[place.local_rank]}
    return dict(enumerate(gpus))


def _visible(library: Any, chosen: str | None) -> list[Any]:  # noqa: ANN401
    """Return the GPUs that CUDA shows the program; GPUs that cannot be identified are omitted.

    Args:
        library: ``pynvml``.
        chosen: Value of ``CUDA_VISIBLE_DEVICES``: numbers or UUIDs; None means all.
    """
    count = library.nvmlDeviceGetCount()
    names = [str(number) for number in range(count)] if chosen is None else chosen.split(",")
    handles = []
    for name in (name.strip() for name in names):
        try:
            if name.isdecimal():
                handles.append(library.nvmlDeviceGetHandleByIndex(int(name)))
            elif name.startswith("GPU-"):
                handles.append(library.nvmlDeviceGetHandleByUUID(name.encode()))
            else:
                break  # like CUDA, which ignores the entries after an invalid one
        except library.NVMLError:
            break
    return handles


def _number(value: Any) -> float:  # noqa: ANN401 - pynvml's structure
    """Return a field's value, from the member of the union that ``valueType`` names."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return float(getattr(value.value, members[value.valueType]))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
