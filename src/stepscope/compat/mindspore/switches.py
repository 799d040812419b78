"""What the switches mean for stepscope: what it records, and which of them this device cannot serve."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.collect.options import Options
from stepscope.collect.switches import options_of
from stepscope.compat.mindspore.parameters import Values
from stepscope.compat.mindspore.vocabulary import AicoreMetrics, ExportType, HostSystem, ProfilerActivity

_LOG = logging.getLogger("stepscope")

_NVIDIA = Path("/proc/driver/nvidia/version")
_NPU = "it needs an Ascend NPU, which stepscope does not record"
_GPU = "this machine has no NVIDIA GPU"

#: Formats of `stepscope report` by MindSpore's name.
FORMATS: dict[ExportType, str] = {ExportType.Text: "csv,json,trace", ExportType.Db: "db"}


@dataclass(frozen=True)
class Switch:
    """A switch that not every device can serve.

    Attributes:
        name: What the user wrote.
        asked: Whether it is turned on, from the values and from what was given.
        reason: Why it cannot be served here; None where it can.
    """

    name: str
    asked: Callable[[Values, Mapping[str, object]], bool]
    reason: Callable[[], str | None]


def _flag(name: str) -> Callable[[Values, Mapping[str, object]], bool]:
    return lambda values, _given: bool(values[name])


def _activity(activity: ProfilerActivity) -> Callable[[Values, Mapping[str, object]], bool]:
    """Whether the program itself names an activity: the default names the NPU on every device."""
    return lambda values, given: given.get("activities") is not None and activity in values["activities"]


def _without_gpu(device: str = _GPU) -> str | None:
    return None if _NVIDIA.exists() else device


def _without_npu() -> str:
    return _NPU


#: All of them; the others are served on every device.
SWITCHES: tuple[Switch, ...] = (
    Switch("ProfilerActivity.NPU", _activity(ProfilerActivity.NPU), _without_npu),
    Switch("ProfilerActivity.GPU", _activity(ProfilerActivity.GPU), _without_gpu),
    Switch("aic_metrics", lambda values, _: values["aic_metrics"] is not AicoreMetrics.AiCoreNone, _without_npu),
    Switch("l2_cache", _flag("l2_cache"), _without_npu),
    Switch("hbm_ddr", _flag("hbm_ddr"), _without_gpu),
    Switch("pcie", _flag("pcie"), _without_gpu),
    Switch("sys_interconnection", _flag("sys_interconnection"), _without_gpu),
    Switch(
        "sys_io",
        _flag("sys_io"),
        lambda: "traffic of single adapters needs an Ascend NPU; that of the host's network is recorded",
    ),
    Switch(
        "HostSystem.OSRT",
        lambda values, _: HostSystem.OSRT in values["host_sys"],
        lambda: "system calls are not recorded; the other systems of the host are",
    ),
    Switch("sync_enable=False", lambda values, _: not values["sync_enable"], _without_gpu),
)

_said: set[str] = set()


def unserved(values: Values, given: Mapping[str, object]) -> dict[str, str]:
    """Return the switches that are on and cannot be served here, with the reason; each is said once a process."""
    found = {switch.name: switch.reason() for switch in SWITCHES if switch.asked(values, given)}
    missing = {name: reason for name, reason in found.items() if reason is not None}
    for name in missing.keys() - _said:
        _said.add(name)
        _LOG.warning("stepscope: %s records nothing here: %s. Everything else is recorded.", name, missing[name])
    return missing


def options(values: Values) -> Options:
    """Return what collectors record."""
    named = {name: [member.value for member in values[name]] for name in ("activities", "host_sys")}
    return options_of({**values, **named})


def formats(values: Values) -> str:
    """Return the formats that results are written in, with commas between them."""
    return ",".join(FORMATS[kind] for kind in FORMATS if kind in values["export_type"])
