"""Waits for the next batch of PyTorch's ``DataLoader``.

PyTorch's own capture has ranges around the same waits, without the loader's facts; where both are there, the assembly
of a rank's files counts these ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepscope.collect.host.data_waits import DataWaits


class DataLoaderCollector(DataWaits):
    """Wraps the ``__next__`` that all iterators of PyTorch's ``DataLoader`` share."""

    name = "dataloader"
    product = "PyTorch"
    framework = "torch"
    module = "torch.utils.data.dataloader"
    iterator_classes = ("_BaseDataLoaderIter",)
    loader_class = "DataLoader"
    attributes: ClassVar[Mapping[str, str]] = {
        "workers": "_num_workers",
        "pin_memory": "_pin_memory",
        "persistent_workers": "_persistent_workers",
        "prefetch_factor": "_prefetch_factor",
        "timeout": "_timeout",
        "auto_collation": "_auto_collation",
    }

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - PyTorch's iterator
        """Return the sampler, which every iterator of a loader shares."""
        return getattr(iterator, "_index_sampler", iterator)
