"""Waits for the next batch of Paddle's ``DataLoader``, with workers and without."""

from __future__ import annotations

from typing import Any

from stepscope.collect.host.data_waits import DataWaits
from stepscope.collect.journal.values import plain

#: Attributes of Paddle's iterators, all private: each may be missing in another version.
_FACTS = {
    "workers": "_num_workers",
    "use_shared_memory": "_use_shared_memory",
    "use_buffer_reader": "_use_buffer_reader",
    "prefetch_factor": "_prefetch_factor",
    "persistent_workers": "_persistent_workers",
    "timeout": "_timeout",
}


class PaddleDataCollector(DataWaits):
    """Wraps the ``__next__`` of Paddle's iterators: one reads in this process, the other has workers."""

    name = "paddle_data"
    product = "Paddle"
    framework = "paddle"
    module = "paddle.io.dataloader.dataloader_iter"
    iterator_classes = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")
    loader_class = "DataLoader"

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - Paddle's iterator
        """Return the sampler, which every iterator of a loader shares; the data set where there is none."""
        return getattr(iterator, "_batch_sampler", None) or getattr(iterator, "_dataset", iterator)

    def facts_of(self, loader: Any, iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401 - Paddle's own
        """Return how the loader was made."""
        facts = {key: plain(getattr(iterator, attribute, None)) for key, attribute in _FACTS.items()}
        facts["batch_size"] = plain(getattr(loader, "batch_size", None))
        facts["dataset"] = type(getattr(iterator, "_dataset", None)).__name__
        return facts
