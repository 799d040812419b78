"""``stepscope run --as NAME``: for one run, stepscope stands behind another profiler's names; the script is unchanged.

Names are replaced in the other package's own modules as soon as the script has imported that package, so that it does
not matter in which order and by which path the script reaches them. :meth:`StandIn.remove` puts everything back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from stepscope.collect.hooks.absent_modules import AbsentModules
from stepscope.collect.hooks.post_import import when_imported

_MINDSPORE = "stepscope.compat.mindspore"

#: What `mindspore.profiler` itself offers.
_PUBLIC = (
    "AicoreMetrics",
    "DynamicProfilerMonitor",
    "EnvProfiler",
    "ExportType",
    "HostSystem",
    "Profiler",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "mstx",
    "profile",
    "schedule",
    "tensorboard_trace_handler",
)


@dataclass(frozen=True)
class Package:
    """A package whose names are replaced.

    Attributes:
        trigger: Module after whose import they are.
        home: Module that has ours.
        names: Module → its name → our name.
        absent: Modules of older versions, which are made where this one has none of that name.
    """

    trigger: str
    home: str
    names: Mapping[str, Mapping[str, str]]
    absent: tuple[str, ...] = ()


#: What `paddle.fluid.profiler` offered, and `paddle.utils.profiler` after it.
_FLUID = ("cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler")

#: By the name that ``--as`` takes.
PACKAGES: dict[str, Package] = {
    "fluid": Package(
        trigger="paddle",
        home="stepscope.compat.fluid.profiler",
        names={path: {name: name for name in _FLUID} for path in ("paddle.fluid.profiler", "paddle.utils.profiler")},
        absent=("paddle.fluid", "paddle.fluid.profiler", "paddle.utils.profiler"),
    ),
    "mindspore": Package(
        trigger="mindspore",
        home=_MINDSPORE,
        names={
            "mindspore": {"Profiler": "Profiler", "EnvProfiler": "EnvProfiler"},
            "mindspore.profiler": {name: name for name in (*_PUBLIC, "analyse", "ProfileOption", "ProfilerAction")},
            "mindspore.profiler.profiler": {
                "Profile": "profile",
                "Profiler": "Profiler",
                "analyse": "analyse",
                "tensorboard_trace_handler": "tensorboard_trace_handler",
            },
            "mindspore.profiler.common.constant": {
                name: name
                for name in ("AicoreMetrics", "ExportType", "HostSystem", "ProfilerActivity", "ProfilerLevel")
            },
            "mindspore.profiler.dynamic_profiler": {"DynamicProfilerMonitor": "DynamicProfilerMonitor"},
            "mindspore.profiler.envprofiler": {"EnvProfiler": "EnvProfiler"},
            "mindspore.profiler.experimental_config": {"_ExperimentalConfig": "_ExperimentalConfig"},
            "mindspore.profiler.mstx": {"Mstx": "mstx"},
            "mindspore.profiler.schedule": {"Schedule": "schedule"},
        },
    ),
}


class StandIn:
    """Our names in the place of a package's.

    Args:
        name: One of :data:`PACKAGES`.
        failed: Called with the error where that could not be done; the script then runs with its own.
    """

    def __init__(self, name: str, failed: Callable[[Exception], None]) -> None:
        self.name = name
        self._package = PACKAGES[name]
        self._failed = failed
        self._replaced: list[tuple[ModuleType, str, object]] = []
        self._withdraw: Callable[[], None] = lambda: None
        self._absent = AbsentModules(self._package.absent, f"`stepscope run --as {name}` provides its profiler only")

    def install(self) -> None:
        """Wait for the script to import the package."""
        self._withdraw = when_imported(self._package.trigger, self._imported)

    def remove(self) -> None:
        """Put the package's own names back."""
        self._withdraw()
        while self._replaced:
            module, name, original = self._replaced.pop()
            if original is _MISSING:
                vars(module).pop(name, None)
            else:
                setattr(module, name, original)
        self._absent.remove()

    def _imported(self) -> None:
        try:
            self._absent.install()
            for module, name, ours in list(self._pairs()):
                self._replaced.append((module, name, vars(module).get(name, _MISSING)))
                setattr(module, name, ours)
        except Exception as error:  # noqa: BLE001 - law 1: the script runs with its own names
            self.remove()
            self._failed(error)

    def _pairs(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Yield each module, the name in it, and what takes its place."""
        home = import_module(self._package.home)
        for path, names in self._package.names.items():
            module = _module(path)
            if module is not None:
                yield from ((module, name, getattr(home, ours)) for name, ours in names.items())


_MISSING = object()


def _module(path: str) -> ModuleType | None:
    """Return a module of the package; None where this version of it has none of that name."""
    if path not in sys.modules:
        try:
            import_module(path)
        except ImportError:
            return None
    return sys.modules[path]
