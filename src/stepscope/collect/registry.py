"""One file per source of measurements, behind the protocol in :mod:`stepscope.collect.protocol`."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.collect.options import Options
    from stepscope.collect.protocol import Collector

#: Name in the manifest → module and class. Started in this order and stopped in this order: the framework's own window
#: is the tightest.
COLLECTORS: dict[str, tuple[str, str]] = {
    "torch": ("stepscope.collect.torch.kineto_collector", "TorchCollector"),
    "mindspore": ("stepscope.collect.mindspore.mindspore_collector", "MindSporeCollector"),
    "paddle": ("stepscope.collect.paddle.paddle_collector", "PaddleCollector"),
    "jax": ("stepscope.collect.jax.jax_collector", "JaxCollector"),
    "dataloader": ("stepscope.collect.torch.torch_waits", "DataLoaderCollector"),
    "minddata": ("stepscope.collect.mindspore.minddata_waits", "MindDataCollector"),
    "paddle_data": ("stepscope.collect.paddle.paddle_waits", "PaddleDataCollector"),
    "garbage": ("stepscope.collect.host.garbage", "GarbageCollector"),
    "cupti": ("stepscope.collect.cuda.cupti_collector", "CuptiCollector"),
    "host": ("stepscope.collect.host.host_counters", "HostCollector"),
    "nvml": ("stepscope.collect.cuda.nvml", "NvmlCollector"),
    "parallel": ("stepscope.collect.mindspore.parallel_strategy", "ParallelCollector"),
    "mindspore_shapes": ("stepscope.collect.mindspore.mindspore_calls", "MindSporeShapesCollector"),
    "python_stacks": ("stepscope.collect.host.python_stacks", "PythonStacksCollector"),
}

#: Name → the options of which one must be turned on; the other collectors are always there.
ON_DEMAND: dict[str, tuple[str, ...]] = {
    "parallel": ("parallel_strategy",),
    "mindspore_shapes": ("record_shapes", "with_flops"),
    "python_stacks": ("with_stack",),
}


def make_collectors(options: Options | None = None) -> list[Collector]:
    """Return a fresh collector of every kind that the options ask for, for one window; without options of all kinds."""
    wanted = [name for name in COLLECTORS if options is None or _is_wanted(name, options)]
    made: list[Collector] = [
        _native(options) if name == "torch" and _is_native(options) else _make(name) for name in wanted
    ]
    return made


def _make(name: str) -> Collector:
    module, kind = COLLECTORS[name]
    made: Collector = getattr(import_module(module), kind)()
    return made


def _is_native(options: Options | None) -> bool:
    """Whether PyTorch's operators are recorded by our own recorder where it can serve, and by Kineto elsewhere."""
    return options is not None and options.collector != "kineto"


def _native(options: Options | None) -> Collector:
    from stepscope.collect.torch.native_collector import TorchNativeCollector

    return TorchNativeCollector(demanded=options is not None and options.collector == "native")


def _is_wanted(name: str, options: Options) -> bool:
    return name not in ON_DEMAND or any(getattr(options, option) for option in ON_DEMAND[name])


def begin_early(framework: str, options: Options) -> None:
    """Begin with what must see the program from the moment it has imported ``framework``; a window ends it."""
    if framework == "mindspore" and options.data_process:
        with suppress(RuntimeError):  # the collector tries again, and says why not
            import_module("stepscope.collect.mindspore.minddata_recording").begin()
    if framework == "torch":
        build_early(options)


def build_early(options: Options) -> None:
    """Build the native recorder where it is wanted and missing, before the training begins: within it nobody builds."""
    if "torch" in sys.modules and options.collector == "auto":
        import_module("stepscope.collect.torch.native_choice").build_early(options)
