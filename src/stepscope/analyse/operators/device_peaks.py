"""What a device can do: as the source says, as its maker says, else as this machine was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import msgspec
import polars as pl

from stepscope.trace.schema import SPEEDS
from stepscope.trace.tables import Tables, columns_of, facts, shared

#: Facts of the run that say what a device can do: a number for all devices, or one for each by name.
PEAK_FLOPS, PEAK_BANDWIDTH = "device_peak_flops", "device_peak_bandwidth"
#: Facts with the GPUs of this machine, and the switches of PyTorch.
_DEVICES, _STATE = "deviceProperties", "torch.state"
#: Types of products that makers and measurements tell apart.
_TYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8")
#: Part of the name of a GPU → 10^12 operations a second in float64, float32, TF32, bfloat16, float16 and float8 without
#: sparsity, and 10^9 bytes a second, of its maker's data sheets; the first that fits counts.
_DATA_SHEETS: tuple[tuple[str, tuple[float | None, ...], float], ...] = (
    (r"B200", (37, 75, 1100, 2250, 2250, 4500), 7700),
    (r"H200", (34, 67, 494.7, 989.4, 989.4, 1978.9), 4800),
    (r"H100.*NVL", (30, 60, 417.5, 835.5, 835.5, 1671), 3900),
    (r"H100.*PCIe", (26, 51, 378, 756, 756, 1513), 2000),
    (r"H100|GH200", (34, 67, 494.7, 989.4, 989.4, 1978.9), 3350),
    (r"A100.*80GB", (9.7, 19.5, 156, 312, 312, None), 2039),
    (r"A100", (9.7, 19.5, 156, 312, 312, None), 1555),
    (r"A800", (9.7, 19.5, 156, 312, 312, None), 2039),
    (r"A30\b", (5.2, 10.3, 82, 165, 165, None), 933),
    (r"A40\b", (0.58, 37.4, 74.8, 149.7, 149.7, None), 696),
    (r"A10\b", (0.49, 31.2, 62.5, 125, 125, None), 600),
    (r"RTX A6000", (0.6, 38.7, 77.4, 154.8, 154.8, None), 768),
    (r"L40S", (1.4, 91.6, 183, 362, 362, 733), 864),
    (r"L4\b", (0.49, 30.3, 60, 121, 121, 242), 300),
    (r"V100", (7.8, 15.7, None, None, 125, None), 900),
    (r"T4\b", (0.25, 8.1, None, None, 65, None), 320),
    (r"RTX 4090", (1.3, 82.6, 82.6, 165.2, 165.2, 660), 1008),
    (r"RTX 3090", (0.56, 35.6, 35.6, 71, 71, None), 936),
    (r"MI325X", (81.7, 163.4, 653.7, 1307.4, 1307.4, 2614.9), 6000),
    (r"MI300X", (81.7, 163.4, 653.7, 1307.4, 1307.4, 2614.9), 5300),
    (r"MI250X", (47.9, 47.9, None, 383, 383, None), 3277),
    (r"MI210", (22.6, 22.6, None, 181, 181, None), 1638),
)


@dataclass(frozen=True)
class DevicePeaks:
    """The most that a device does in a second.

    Attributes:
        source: ``source``, ``data sheet``, ``measured``, or ``measured while busy``: the device does more than that.
            Empty if nothing is known.
        any_type: Floating-point operations of any type, where the source does not tell them apart.
        by_type: Floating-point operations of products by type.
        bandwidth: Bytes read and written.
        call_ns: How long a call of the smallest operator takes from Python, in ns.
        products_in_tf32: Families of operators that compute float32 in TF32.
    """

    source: str = ""
    any_type: float | None = None
    by_type: dict[str, float] = field(default_factory=dict)
    bandwidth: float | None = None
    call_ns: float | None = None
    products_in_tf32: frozenset[str] = frozenset()

    def flops(self, dtype: str | None, family: str | None = None) -> float | None:
        """Return the most operations a second in a type, for a family of operators; None if unknown.

        An operator of unknown type counts as float32.
        """
        if self.any_type is not None:
            return self.any_type
        dtype = dtype or "float32"
        if dtype == "float32" and family in self.products_in_tf32:
            dtype = "tf32" if "tf32" in self.by_type else dtype
        return self.by_type.get(dtype)


@shared
def device_peaks(tables: Tables) -> dict[str, DevicePeaks]:
    """Return what each device of the rank can do, by its name; ``cpu`` is the host."""
    known = facts(tables)
    devices = set(columns_of(tables, "tracks", "device")["device"].cast(pl.String).to_list()) | {"cpu"}
    said = [by_device(known.get(key), devices) for key in (PEAK_FLOPS, PEAK_BANDWIDTH)]
    names = _names(_decoded(known.get(_DEVICES)))
    speeds, tf32 = _decoded(known.get(SPEEDS)), _in_tf32(_decoded(known.get(_STATE)))
    found = {}
    for device in devices:
        flops, bandwidth = (one.get(device) for one in said)
        measured = _measured(speeds, device)
        if flops is not None or bandwidth is not None:
            found[device] = DevicePeaks("source", flops, {}, bandwidth, measured.call_ns)
        else:
            sheet = _of_data_sheet(names.get(device, ""), tf32)
            found[device] = sheet if sheet is not None else measured
    return found


def by_device(text: str | None, devices: Iterable[str]) -> dict[str, float]:
    """Return the numbers that a fact says, by device; one number is that of all; anything else is unknown."""
    value = _decoded(text)
    found = value if isinstance(value, dict) else dict.fromkeys(devices, value)
    numbers = {device: _positive(one) for device, one in found.items()}
    return {device: number for device, number in numbers.items() if number is not None}


def _decoded(text: str | None) -> Any:  # noqa: ANN401 - JSON of a source
    try:
        return msgspec.json.decode(text or "null")
    except (ValueError, RecursionError):
        return None


def _positive(value: Any) -> float | None:  # noqa: ANN401
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e30 and isfinite(value) else None


def _names(listed: Any) -> dict[str, str]:  # noqa: ANN401
    """Return the names of GPUs by device."""
    devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {f"cuda:{one.get('id', place)}": str(one.get("name", "")) for place, one in enumerate(devices)}


def _in_tf32(state: Any) -> frozenset[str]:  # noqa: ANN401
    """Return which families compute float32 in TF32: convolutions, unless the program turned that off."""
    said = state if isinstance(state, dict) else {}
    products = {"convolution"} if said.get("tf32_cudnn") is not False else set()
    return frozenset(products | ({"matmul"} if said.get("tf32_matmul") is True else set()))


def _of_data_sheet(name: str, tf32: frozenset[str]) -> DevicePeaks | None:
    for pattern, speeds, bandwidth in _DATA_SHEETS:
        if re.search(pattern, name):
            known = {kind: speed * 1e12 for kind, speed in zip(_TYPES, speeds, strict=True) if speed is not None}
            return DevicePeaks("data sheet", None, known, bandwidth * 1e9, None, tf32)
    return None


def _measured(speeds: Any, device: str) -> DevicePeaks:  # noqa: ANN401
    """Return the reference speeds of this machine on a device; of several frameworks the fastest counts.

    One core, by CPU time, is as fast on a busy machine.
    """
    sort = device.partition(":")[0]
    listed = [one for one in speeds if isinstance(one, dict)] if isinstance(speeds, list) else []
    mine = [one for one in listed if one.get("device") == sort]
    by_type: dict[str, float] = {}
    for one in mine:
        trials = [kinds for kinds in (one.get("products"), one.get("one_core")) if isinstance(kinds, dict)]
        for kind, product in (item for kinds in trials for item in kinds.items()):
            speed = _positive(product.get("flops_per_s")) if isinstance(product, dict) else None
            if speed is not None:
                by_type[kind] = max(speed, by_type.get(kind, 0.0))
    copies = [speed for one in mine if (speed := _positive(one.get("copy_bytes_per_s"))) is not None]
    calls = [ns for one in mine if (ns := _positive(one.get("call_ns"))) is not None]
    busy = " while busy" if all(one.get("disturbed") is True for one in mine) else ""
    source = f"measured{busy}" if by_type or copies else ""
    return DevicePeaks(source, None, by_type, max(copies, default=None), min(calls, default=None))
