"""Waits for the next batch of Paddle's ``DataLoader``, with workers and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepscope.collect.host.data_waits import DataWaits


class PaddleDataCollector(DataWaits):
    """Wraps the ``__next__`` of Paddle's two iterators: one reads in this process, the other in workers."""

    name = "paddle_data"
    product = "Paddle"
    framework = "paddle"
    module = "paddle.io.dataloader.dataloader_iter"
    iterator_classes = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")
    loader_class = "DataLoader"
    attributes: ClassVar[Mapping[str, str]] = {
        "workers": "_num_workers",
        "use_shared_memory": "_use_shared_memory",
        "use_buffer_reader": "_use_buffer_reader",
        "prefetch_factor": "_prefetch_factor",
        "persistent_workers": "_persistent_workers",
        "timeout": "_timeout",
    }

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - Paddle's iterator
        """Return the sampler, which all iterators of a loader share, or else the data set."""
        return getattr(iterator, "_batch_sampler", None) or getattr(iterator, "_dataset", iterator)
