"""Facts about a recording: versions, times, and what the devices can do, by the planes' own stats."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from stepscope.read.xplane.device_planes import XplaneDevice
from stepscope.read.xplane.planes import Plane, Value

#: Stats of devices as the planes name them → keys of the table ``metadata``, and how many of its unit one is.
_OF_DEVICES: dict[str, tuple[str, float]] = {
    "device_type_string": ("device_name", 1),
    "device_vendor": ("device_vendor", 1),
    "clock_rate": ("device_clock_rate", 1_000),
    "core_count": ("device_core_count", 1),
    "memory_bandwidth": ("device_peak_bandwidth", 1),
    "memory_size": ("device_memory_size", 1),
    "compute_cap_major": ("device_compute_major", 1),
    "compute_cap_minor": ("device_compute_minor", 1),
    # TPUs say these, 10^12 and 10^9 in a second.
    "peak_teraflops_per_second": ("device_peak_flops", 1e12),
    "peak_hbm_bw_gigabytes_per_second": ("device_peak_bandwidth", 1e9),
}

#: FLOPs in single precision that a core (multiprocessor, compute unit) does in one cycle outside matrix units, by
#: vendor and compute capability; a fused multiply-add is two. NVIDIA: "Arithmetic Instructions" of the CUDA C++
#: programming guide. AMD, whose gfx90a and gfx942 are 9.0 and 9.4: the CDNA 2 and CDNA 3 white papers.
_FLOPS_PER_CYCLE: dict[tuple[str, int, int], int] = {
    ("Nvidia", 5, 0): 256,
    ("Nvidia", 5, 2): 256,
    ("Nvidia", 6, 0): 128,
    ("Nvidia", 6, 1): 256,
    ("Nvidia", 7, 0): 128,
    ("Nvidia", 7, 5): 128,
    ("Nvidia", 8, 0): 128,
    ("Nvidia", 8, 6): 256,
    ("Nvidia", 8, 7): 256,
    ("Nvidia", 8, 9): 256,
    ("Nvidia", 9, 0): 256,
    ("Nvidia", 10, 0): 256,
    ("Nvidia", 10, 3): 256,
    ("Nvidia", 12, 0): 256,
    ("AMD", 9, 0): 128,
    ("AMD", 9, 4): 256,
}
_START, _STOP = "profile_start_time", "profile_stop_time"


@dataclass
class XplaneFacts:
    """What a file says of itself.

    Attributes:
        start: When the recording began, ns since the Unix epoch; 0 where the file does not say.
        host: Name of the host; empty where the file does not say.
    """

    start: int = 0
    host: str = ""
    _values: dict[str, Any] = field(default_factory=dict)

    def read(self, plane: Plane, device: XplaneDevice | None) -> None:
        """Take what a plane says of itself."""
        if device is not None:
            self._device(plane.stats, device)
            return
        start = plane.stats.get(_START)
        if isinstance(start, int) and 0 < start < 1 << 61:
            self.start = start
        for name, value in plane.stats.items():
            if isinstance(value, int | float | str) and name:
                self._values[name] = value

    def _device(self, stats: dict[str, Value], device: XplaneDevice) -> None:
        for name, (key, factor) in _OF_DEVICES.items():
            value = stats.get(name)
            if isinstance(value, str):
                self._values.setdefault(key, {})[device.name] = value
            elif isinstance(value, int | float) and value > 0:
                self._values.setdefault(key, {})[device.name] = value * factor
        flops = _peak(stats)
        if flops is not None:
            self._values.setdefault("device_peak_flops", {}).setdefault(device.name, flops)

    def as_json(self) -> dict[str, str]:
        """Return the rows of the table ``metadata``."""
        return {name: json.dumps(value) for name, value in {**self._values, "profiler": "xplane"}.items()}


def _peak(stats: dict[str, Value]) -> int | None:
    """Return the most FLOPs in a second, in single precision and outside matrix units; None where it is not known."""
    clock, cores, major, minor = (
        value if isinstance(value := stats.get(name), int) else 0
        for name in ("clock_rate", "core_count", "compute_cap_major", "compute_cap_minor")
    )
    each = _FLOPS_PER_CYCLE.get((str(stats.get("device_vendor")), major, minor), 0)
    # The clock is given in kHz.
    return each * clock * 1_000 * cores or None
