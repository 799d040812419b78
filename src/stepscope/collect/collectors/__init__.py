"""One file per source of measurements, behind the protocol in :mod:`stepscope.collect.collectors.protocol`."""

from __future__ import annotations

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
    "dataloader": "DataLoaderCollector",
    "minddata": "MindDataCollector",
    "garbage": "GarbageCollector",
    "host": "HostCollector",
}


def make_collectors() -> list[Collector]:
    """Return a fresh collector of every kind, for one window."""
    return [getattr(import_module(f"{__name__}.{module}"), name)() for module, name in COLLECTORS.items()]


def begin_early(framework: str, options: Options) -> None:
    """Begin with what must see the program from the moment it has imported ``framework``; a window ends it."""
    if framework == "mindspore" and options.data_process:
        with suppress(RuntimeError):  # the collector tries again, and says why not
            import_module(f"{__name__}.mindspore_pipeline").begin()
