"""One file per source of measurements, behind the protocol in :mod:`stepscope.collect.collectors.protocol`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Collector

#: Module → class. Started in this order and stopped in this order: the framework's own window is the tightest.
COLLECTORS: dict[str, str] = {
    "torch": "TorchCollector",
    "dataloader": "DataLoaderCollector",
    "garbage": "GarbageCollector",
    "host": "HostCollector",
}


def make_collectors() -> list[Collector]:
    """Return a fresh collector of every kind, for one window."""
    return [getattr(import_module(f"{__name__}.{module}"), name)() for module, name in COLLECTORS.items()]
