"""Which collectors a window gets, and in which order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stepscope.collect.frameworks import FRAMEWORKS, CollectorEntry
from stepscope.extensions import guarded

if TYPE_CHECKING:
    from stepscope.collect.options import Options
    from stepscope.collect.protocol import Collector

#: They start and stop in this order: the framework's own recorder comes first in both.
COLLECTORS = (
    *(framework.operators for framework in FRAMEWORKS.values()),
    *(entry for framework in FRAMEWORKS.values() for entry in framework.waits),
    CollectorEntry("compilations", "stepscope.collect.host.compilations", "CompilationsCollector"),
    CollectorEntry("garbage", "stepscope.collect.host.garbage", "GarbageCollector"),
    CollectorEntry("stack_samples", "stepscope.collect.host.stack_samples", "StackSamplesCollector", ("stacks_hz",)),
    CollectorEntry("cupti", "stepscope.collect.cuda.cupti_collector", "CuptiCollector"),
    CollectorEntry("machine", "stepscope.collect.machine.machine_facts", "MachineCollector"),
    CollectorEntry("threads", "stepscope.collect.host.thread_use", "ThreadUseCollector"),
    CollectorEntry("host", "stepscope.collect.host.host_counters", "HostCollector"),
    CollectorEntry("nvml", "stepscope.collect.cuda.nvml", "NvmlCollector"),
    *(extra for framework in FRAMEWORKS.values() for extra in framework.extras),
    CollectorEntry("python_stacks", "stepscope.collect.host.python_stacks", "PythonStacksCollector", ("with_stack",)),
)


def make_collectors(options: Options | None = None) -> list[Collector]:
    """Return new collectors for one window: those that the options ask for; all of them if ``options`` is None."""
    ours = [
        _make(entry, options)
        for entry in COLLECTORS
        if options is None or not entry.on_demand or any(getattr(options, option) for option in entry.on_demand)
    ]
    others = (make() for make in guarded("stepscope.collectors", [entry.name for entry in COLLECTORS]))
    return [*ours, *(other for other in others if other is not None)]


def _make(entry: CollectorEntry, options: Options | None) -> Collector:
    if entry.name == "torch" and options is not None and options.collector != "kineto":
        # It falls back to the Kineto collector if it cannot record.
        from stepscope.collect.torch.native_collector import TorchNativeCollector

        return TorchNativeCollector(demanded=options.collector == "native")
    made: Collector = getattr(import_module(entry.module), entry.kind)()
    return made
