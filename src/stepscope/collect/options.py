"""What a profile records, as one frozen record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError

DEFAULT_OUTPUT = Path("stepscope-runs")

#: Who records PyTorch's operators: Kineto, PyTorch's own; our recorder in C++; or whichever of them fits.
COLLECTORS = ("auto", "native", "kineto")
#: Samples of counters a second: with more, the thread that takes them does nothing else.
_MOST_OFTEN = 1000


class Activity(Enum):
    """Whose work is recorded. Names are those of ``torch.profiler.ProfilerActivity``."""

    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"
    MTIA = "mtia"
    HPU = "hpu"
    PRIVATE_USE = "privateuse1"


@dataclass(frozen=True)
class Options:
    """What the collectors of one profile record.

    Attributes:
        activities: Whose work; empty means the CPU and every accelerator the framework finds.
        record_shapes: Shapes and types of operator inputs.
        profile_memory: Memory taken and freed.
        memory_by_default: Nobody asked for memory by name: a framework in which it costs much leaves it out.
        with_stack: Python stack of every operator.
        with_flops: Floating-point operations of matrix products and convolutions.
        with_modules: The module that called each operator.
        host_pipeline: What MindSpore's threads do besides running operators: calls, queues, waits. It tells the thread
            of an operator and, in PyNative mode, forward from backward; each operator pays for it.
        counters_hz: Samples of the host counters per second; 0 turns them off.
        data_process: Data pipelines of the framework: queues, and the processor time of every operation.
        parallel_strategy: What the model's context and cells declare of their distribution.
        host_sys: Counters of the host that are asked for by name: ``cpu``, ``mem``, ``disk``, ``network``, ``osrt``.
        sys_io: Traffic of every network interface.
        pcie: Traffic between the host and each GPU.
        hbm_ddr: How much of a GPU's memory is used, and for how much of the time.
        collector: Who records PyTorch's operators, one of :data:`COLLECTORS`.
        sample: Fraction of PyTorch's operators that is recorded; less than 1 needs the native recorder.
        mstx_domain_include: Domains whose ``mstx`` marks and ranges are recorded; empty means all.
        mstx_domain_exclude: Domains whose ``mstx`` marks and ranges are not recorded.
    """

    activities: tuple[Activity, ...] = ()
    record_shapes: bool = False
    profile_memory: bool = False
    memory_by_default: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    host_pipeline: bool = True
    counters_hz: float = 10.0
    data_process: bool = False
    parallel_strategy: bool = False
    host_sys: tuple[str, ...] = ()
    sys_io: bool = False
    pcie: bool = False
    hbm_ddr: bool = False
    collector: str = "auto"
    sample: float = 1.0
    mstx_domain_include: tuple[str, ...] = ()
    mstx_domain_exclude: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Return the options as plain values for the manifest."""
        return {**asdict(self), "activities": [activity.value for activity in self.activities]}


def check_collector(collector: str) -> str:
    """Return the name of a collector of PyTorch's operators.

    Raises:
        UsageError: It is none of :data:`COLLECTORS`.
    """
    if collector not in COLLECTORS:
        message = f"Unknown collector {collector!r}."
        raise UsageError(message, f"Known: {', '.join(COLLECTORS)}.")
    return collector


def check_sample(sample: object) -> float:
    """Return a fraction of the operators.

    Raises:
        UsageError: It is no number above 0 and up to 1.
    """
    if isinstance(sample, bool) or not isinstance(sample, (int, float)) or not 0 < sample <= 1:
        message = f"A sample is a fraction above 0 and up to 1, not {sample!r}."
        raise UsageError(message, "Write 0.01 for one operator in a hundred.")
    return float(sample)


def check_rate(hertz: object) -> float:
    """Return how often a second the host's counters are sampled.

    Raises:
        UsageError: It is no number from 0 to 1000.
    """
    if isinstance(hertz, bool) or not isinstance(hertz, (int, float)) or not 0 <= hertz <= _MOST_OFTEN:
        message = f"Counters are sampled 0 to {_MOST_OFTEN} times a second, not {hertz!r}."
        raise UsageError(message, "Write 10 for ten times a second, 0 for no counters.")
    return float(hertz)


def parse_activities(activities: Iterable[object] | None) -> tuple[Activity, ...]:
    """Turn what a user passes as ``activities`` into :class:`Activity` members, in order, each once.

    Args:
        activities: Members of :class:`Activity`, their names in any case, or members of
            ``torch.profiler.ProfilerActivity``; None and an empty sequence mean all that there are.

    Raises:
        UsageError: One of them is not known.
    """
    known = {activity.value: activity for activity in Activity}
    parsed = []
    for item in activities or ():
        name = str(getattr(item, "name", item)).lower().replace("private_use", "privateuse1")
        if name not in known:
            message = f"Unknown activity {item!r}."
            raise UsageError(message, f"Known: {', '.join(known)}.")
        parsed.append(known[name])
    return tuple(dict.fromkeys(parsed))
