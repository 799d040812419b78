"""The documented interface of MindSpore's profiler, of every version, recording with stepscope.

A script of MindSpore's documents runs, also on a CPU, with ``stepscope.compat.mindspore`` in place of
``mindspore.profiler``::

    from stepscope.compat.mindspore import Profiler

    profiler = Profiler()
    train(net)
    profiler.analyse()

A name is imported on first use; importing this module loads no framework. ``DynamicProfilerMonitor`` is a callback of
MindSpore's, and loads it where it is installed. See ``docs/mindspore.md``.
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

#: Module of each name; the others are in ``vocabulary``.
_HOME = {
    "DynamicProfilerMonitor": "dynamic",
    "EnvProfiler": "profiler",
    "Profiler": "profiler",
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
    if name not in __all__:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'vocabulary')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
