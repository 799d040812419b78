"""Waits for the next batch of Grain's ``DataLoader`` and of its datasets, with workers and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from stepscope.collect.frameworks import is_installed
from stepscope.collect.host.data_waits import DataWaits
from stepscope.collect.journal.values import plain

#: Where a stage of a dataset, or its iterator, holds the stage before it.
_BEFORE = ("_parents", "_map_parent", "_iter_parent", "_datasets")


class GrainCollector(DataWaits):
    """Wraps the ``__next__`` of the iterator that Grain's ``DataLoader`` gives to programs."""

    name = "grain"
    product = "Grain"
    framework = "jax"
    module, awaited = "grain", "grain._src.python.load"  # Grain imports JAX before it has its classes
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


class GrainDatasetCollector(GrainCollector):
    """Wraps the ``__next__`` of all iterators of ``MapDataset`` and ``IterDataset``; the last stage counts."""

    name = "grain_dataset"
    iterator_classes = ("DatasetIterator",)
    loader_class = "Dataset"

    def _record(self, iterator: object, start_ns: int, end_ns: int) -> None:
        if not threading.current_thread().name.startswith("grain-"):  # threads with which Grain itself reads ahead
            super()._record(iterator, start_ns, end_ns)

    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - Grain's iterator
        """Return the data source, which all iterators of a dataset share."""
        *_, first = _stages(iterator)
        return getattr(first, "_source", first)

    def facts_of(self, loader: Any, iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401 - Grain's own
        """Return the data source, the processes of ``mp_prefetch``, and the size of the last stage of batches."""
        stages = list(_stages(iterator))
        processes = [stage for stage in stages if type(stage).__name__.startswith("ProcessPrefetch")]
        side_by_side = [len(getattr(stage, "_datasets", ())) for stage in stages]
        sizes = (plain(getattr(stage, "_batch_size", None)) for stage in stages)
        return {
            "dataset": type(loader).__name__,
            "workers": max(1, *side_by_side) if processes else 0,
            "prefetch_factor": plain(getattr(processes[0], "_buffer_size", None)) if processes else None,
            "batch_size": next(filter(None, sizes), None),
        }


def _stages(iterator: Any) -> Iterator[Any]:  # noqa: ANN401 - Grain's iterators and datasets
    """Yield the stages of a dataset from its end to its source; of stages side by side the first."""
    stage = iterator
    while stage is not None:
        yield stage
        held = (getattr(stage, name, None) for name in _BEFORE)
        firsts = (next(iter(one), None) if isinstance(one, list | tuple) else one for one in held)
        stage = next((one for one in firsts if one is not None), None)  # a dataset's truth is its length
