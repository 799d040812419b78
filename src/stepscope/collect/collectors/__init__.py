"""One file per source of measurements, behind the protocol in :mod:`stepscope.collect.collectors.protocol`."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Collector
    from stepscope.collect.options import Options

#: Module → class. Started in this order and stopped in this order: the framework's own window is the tightest.
COLLECTORS: dict[str, str] = {
    "torch": "TorchCollector",
    "mindspore": "MindSporeCollector",
    "paddle": "PaddleCollector",
    "jax": "JaxCollector",
    "dataloader": "DataLoaderCollector",
    "minddata": "MindDataCollector",
    "paddle_data": "PaddleDataCollector",
    "garbage": "GarbageCollector",
    "cupti": "CuptiCollector",
    "host": "HostCollector",
    "nvml": "NvmlCollector",
    "parallel": "ParallelCollector",
    "mindspore_shapes": "MindSporeShapesCollector",
    "python_stacks": "PythonStacksCollector",
}

#: Module → the options of which one must be turned on; the other collectors are always there.
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
    made: Collector = getattr(import_module(f"{__name__}.{name}"), COLLECTORS[name])()
    return made


def _is_native(options: Options | None) -> bool:
    """Whether PyTorch's operators are recorded by our own recorder where it can serve, and by Kineto elsewhere."""
    return options is not None and options.collector != "kineto"


def _native(options: Options | None) -> Collector:
    from stepscope.collect.collectors.torch_native import TorchNativeCollector

    return TorchNativeCollector(demanded=options is not None and options.collector == "native")


def _is_wanted(name: str, options: Options) -> bool:
    return name not in ON_DEMAND or any(getattr(options, option) for option in ON_DEMAND[name])


def begin_early(framework: str, options: Options) -> None:
    """Begin with what must see the program from the moment it has imported ``framework``; a window ends it."""
    if framework == "mindspore" and options.data_process:
        with suppress(RuntimeError):  # the collector tries again, and says why not
            import_module(f"{__name__}.mindspore_pipeline").begin()
    if framework == "torch":
        build_early(options)


def build_early(options: Options) -> None:
    """Build the native recorder where it is wanted and missing, before the training begins: within it nobody builds."""
    if "torch" in sys.modules and options.collector == "auto":
        import_module(f"{__name__}.torch_native_choice").build_early(options)
