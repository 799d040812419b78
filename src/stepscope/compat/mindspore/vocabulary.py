"""The enumerations of MindSpore's profiler, with the names and values of MindSpore 2.10, and its config class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from stepscope.collect.start.json_options import LEGACY_METRICS as _LEGACY_METRICS

_Member = TypeVar("_Member", bound=Enum)


class _Word(Enum):
    """A member equals MindSpore's own member of the same name, which a script gets by a path that is not replaced."""

    def __eq__(self, other: object) -> bool:
        return self is ours(other, type(self))

    __hash__ = Enum.__hash__


class ProfilerActivity(_Word):
    """Whose work is recorded."""

    CPU = "CPU"
    NPU = "NPU"
    GPU = "GPU"


class ProfilerLevel(_Word):
    """How much of an NPU's work is recorded."""

    LevelNone = "LevelNone"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AicoreMetrics(_Word):
    """Which counters of an NPU's AI Cores are recorded."""

    PipeUtilization = "PipeUtilization"
    ArithmeticUtilization = "ArithmeticUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    ResourceConflictRatio = "ResourceConflictRatio"
    MemoryUB = "MemoryUB"
    L2Cache = "L2Cache"
    MemoryAccess = "MemoryAccess"
    AiCoreNone = "None"


#: Codes of `Profiler(aicore_metrics=…)` in MindSpore 1.x to 2.5; the JSON file of DynamicProfilerMonitor has others.
LEGACY_METRICS: dict[int, AicoreMetrics] = {number: AicoreMetrics(name) for number, name in _LEGACY_METRICS.items()}


class ExportType(_Word):
    """Format of the results."""

    Text = "text"
    Db = "db"


class HostSystem(_Word):
    """Counters of the host that are sampled."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


class ProfilerAction(_Word):
    """The action of a step."""

    NONE = 0
    WARM_UP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3

    @staticmethod
    def get_by_value(value: int) -> ProfilerAction | None:
        """Return the member that has ``value``, or None."""
        return next((action for action in ProfilerAction if action.value == value), None)


class ProfileOption(_Word):
    """What ``Profiler.profile`` reports about a network (MindSpore 1.x)."""

    trainable_parameters = 0


@dataclass
class _ExperimentalConfig:
    """Arguments that may change between versions; the class checks none of them, as in MindSpore.

    Attributes:
        profiler_level: How much of an NPU.
        aic_metrics: Which counters of its AI Cores.
        l2_cache: Its L2 cache.
        mstx: Marks and ranges of ``mstx``.
        data_simplification: Accepted and ignored; captures are kept, so that every result can be computed again.
        export_type: Format of the results; None means text.
        mstx_domain_include: Domains of ``mstx`` that are recorded; empty means all.
        mstx_domain_exclude: Domains of ``mstx`` that are not recorded.
        sys_io: Traffic of network adapters.
        sys_interconnection: Traffic between devices.
        host_sys: Counters of the host that are sampled.
    """

    profiler_level: Any = ProfilerLevel.Level0
    aic_metrics: Any = AicoreMetrics.AiCoreNone
    l2_cache: Any = False
    mstx: Any = False
    data_simplification: Any = True
    export_type: Any = None
    mstx_domain_include: Any = None
    mstx_domain_exclude: Any = None
    sys_io: Any = False
    sys_interconnection: Any = False
    host_sys: Any = None


def ours(value: object, kind: type[_Member]) -> object:
    """Return our member for a member of MindSpore's enumeration of the same name; return other values unchanged."""
    if isinstance(value, Enum) and not isinstance(value, kind) and type(value).__name__ == kind.__name__:
        return kind.__members__.get(value.name, value)
    return value
