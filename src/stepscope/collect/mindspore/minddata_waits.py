"""Waits for the next batch of a MindSpore dataset: its tuple and dict iterators, and those of ``Model.train``."""

from __future__ import annotations

from typing import Any

from stepscope.collect.host.data_waits import DataWaits
from stepscope.collect.journal.values import plain

#: The most operations of one pipeline to name: a pipeline may be a tree of thousands.
_OPERATIONS = 32


class MindDataCollector(DataWaits):
    """Wraps the ``__next__`` that all iterators over MindSpore's datasets share."""

    name = "minddata"
    product = "MindSpore"
    framework = "mindspore"
    module = "mindspore.dataset.engine.iterators"
    iterator_classes = ("Iterator",)
    loader_class = "Dataset"

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - MindSpore's iterator
        """Return the dataset that the program created; an iterator works on a copy."""
        return getattr(iterator, "_Iterator__ori_dataset", iterator)

    def facts_of(self, loader: Any, _iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401 - MindSpore's own
        """Return the operations of the pipeline, from the last one to the source."""
        operations = _operations(loader)
        return {
            "dataset": type(operations[-1]).__name__.removesuffix("Dataset"),
            "workers": plain(getattr(loader, "num_parallel_workers", None)),
            "batch_size": next((plain(size) for op in operations if (size := getattr(op, "batch_size", None))), None),
            "operations": [type(operation).__name__.removesuffix("Dataset") for operation in operations],
        }


def _operations(dataset: Any) -> list[Any]:  # noqa: ANN401 - a mindspore.dataset.Dataset
    """Return the operations from the last one along the first inputs to the source."""
    operations = [dataset]
    while len(operations) < _OPERATIONS and (inputs := getattr(operations[-1], "children", None)):
        operations.append(inputs[0])
    return operations
