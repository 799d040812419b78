"""Waits for the next batch of Grain's ``DataLoader``, with workers and without."""

from __future__ import annotations

from typing import Any

from stepscope.collect.frameworks import is_installed
from stepscope.collect.host.data_waits import DataWaits
from stepscope.collect.journal.values import plain


class GrainCollector(DataWaits):
    """Wraps the ``__next__`` of the iterator that Grain's ``DataLoader`` gives to programs."""

    name = "grain"
    product = "Grain"
    framework = "jax"
    module = "grain._src.python.data_loader"
    iterator_classes = ("DataLoaderIterator",)
    loader_class = "DataLoader"

    def available(self) -> str | None:
        """Return why waits cannot be recorded here, or None."""
        return None if is_installed("grain") else "Grain is not installed."

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - Grain's iterator
        """Return the loader, which every iterator of it holds."""
        return getattr(iterator, "_data_loader", iterator)

    def facts_of(self, loader: Any, iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401, ARG002 - Grain's own
        """Return the data source, the workers and the size of a batch, which an operation of the loader says."""
        options = getattr(loader, "multiprocessing_options", None)
        sizes = [getattr(operation, "batch_size", None) for operation in getattr(loader, "_operations", ())]
        return {
            "dataset": type(getattr(loader, "_data_source", None)).__name__,
            "workers": plain(getattr(options, "num_workers", None)),
            "prefetch_factor": plain(getattr(options, "per_worker_buffer_size", None)),
            "batch_size": next((plain(size) for size in reversed(sizes) if size), None),
        }
