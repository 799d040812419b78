"""Waits for the next batch of PyTorch's ``DataLoader``.

PyTorch's own capture has ranges around the same waits, without the loader's facts; where both are there, the assembly
of a rank's files counts these ones.
"""

from __future__ import annotations

from typing import Any

from stepscope.collect.host.data_waits import DataWaits
from stepscope.collect.journal.values import plain

#: Attributes of PyTorch's iterator (2.1 to 2.13), all private: each may be missing in another version.
_FACTS = {
    "workers": "_num_workers",
    "pin_memory": "_pin_memory",
    "persistent_workers": "_persistent_workers",
    "prefetch_factor": "_prefetch_factor",
    "timeout": "_timeout",
}


class DataLoaderCollector(DataWaits):
    """Wraps the ``__next__`` that all iterators of PyTorch's ``DataLoader`` share."""

    name = "dataloader"
    product = "PyTorch"
    framework = "torch"
    module = "torch.utils.data.dataloader"
    iterator_classes = ("_BaseDataLoaderIter",)
    loader_class = "DataLoader"

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - PyTorch's iterator
        """Return the sampler, which every iterator of a loader shares."""
        return getattr(iterator, "_index_sampler", iterator)

    def facts_of(self, loader: Any, iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401 - PyTorch's own
        """Return how the loader was made."""
        facts = {key: plain(getattr(iterator, attribute, None)) for key, attribute in _FACTS.items()}
        facts["batch_size"] = plain(getattr(loader, "batch_size", None))
        facts["dataset"] = type(getattr(iterator, "_dataset", None)).__name__
        return facts
