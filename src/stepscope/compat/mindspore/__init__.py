"""The documented interface of MindSpore's profiler, of every version, recording with stepscope.

A script of MindSpore's documents runs, also on a CPU, with ``stepscope.compat.mindspore`` in place of
``mindspore.profiler``::

    from stepscope.compat.mindspore import Profiler

    profiler = Profiler()
    train(net)
    profiler.analyse()

A name is imported on first use; importing this module loads no framework. See ``docs/mindspore.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.compat.mindspore.dynamic import DynamicProfilerMonitor
    from stepscope.compat.mindspore.handler import tensorboard_trace_handler
    from stepscope.compat.mindspore.mstx import mstx
    from stepscope.compat.mindspore.offline import analyse
    from stepscope.compat.mindspore.profiler import EnvProfiler, Profiler, profile
    from stepscope.compat.mindspore.schedules import schedule
    from stepscope.compat.mindspore.vocabulary import (
        AicoreMetrics,
        ExportType,
        HostSystem,
        ProfileOption,
        ProfilerAction,
        ProfilerActivity,
        ProfilerLevel,
        _ExperimentalConfig,
    )

_HOME = {
    "AicoreMetrics": "vocabulary",
    "DynamicProfilerMonitor": "dynamic",
    "EnvProfiler": "profiler",
    "ExportType": "vocabulary",
    "HostSystem": "vocabulary",
    "ProfileOption": "vocabulary",
    "Profiler": "profiler",
    "ProfilerAction": "vocabulary",
    "ProfilerActivity": "vocabulary",
    "ProfilerLevel": "vocabulary",
    "_ExperimentalConfig": "vocabulary",
    "analyse": "offline",
    "mstx": "mstx",
    "profile": "profiler",
    "schedule": "schedules",
    "tensorboard_trace_handler": "handler",
}

__all__ = [
    "AicoreMetrics",
    "DynamicProfilerMonitor",
    "EnvProfiler",
    "ExportType",
    "HostSystem",
    "ProfileOption",
    "Profiler",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "analyse",
    "mstx",
    "profile",
    "schedule",
    "tensorboard_trace_handler",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type is that of the public name
    home = _HOME.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
