"""Waits for the next batch: every ``next()`` of a PyTorch ``DataLoader`` as a span of kind ``data``.

PyTorch's own capture has ranges around the same waits, without the loader's facts; where both are there, the assembly
of a rank's files counts these ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from stepscope.collect.post_import import when_imported
from stepscope.collect.values import plain

if TYPE_CHECKING:
    from stepscope.collect.collectors.protocol import Context
    from stepscope.collect.journal import Journal

_MODULE = "torch.utils.data.dataloader"

#: Attributes of PyTorch's iterator (2.1 to 2.13), all private: each may be missing in another version.
_FACTS = {
    "workers": "_num_workers",
    "pin_memory": "_pin_memory",
    "persistent_workers": "_persistent_workers",
    "prefetch_factor": "_prefetch_factor",
    "timeout": "_timeout",
}


class DataLoaderCollector:
    """Wraps the ``__next__`` that all iterators of PyTorch's ``DataLoader`` share."""

    name = "dataloader"

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._base: Any = None
        self._original: Callable[[Any], Any] | None = None
        self._wrapper: Callable[[Any], Any] | None = None
        # By identity of the loader's sampler, which is kept so that nothing else gets its identity.
        self._loaders: dict[int, _Loader] = {}
        self._waits = 0
        self._note = ""
        self._withdraw: Callable[[], None] | None = None

    def available(self) -> str | None:
        """Return why data loaders cannot be seen here, or None."""
        return None if "torch" in sys.modules or find_spec("torch") else "PyTorch is not installed."

    def prepare(self, context: Context) -> None:
        """Remember where spans go."""
        self._journal = context.journal

    def start(self) -> None:
        """Put the wrapper in place of ``__next__``, now or once the program has imported PyTorch's data loader."""
        self._withdraw = when_imported(_MODULE, self._wrap)

    def _wrap(self) -> None:
        base: Any = getattr(sys.modules[_MODULE], "_BaseDataLoaderIter", None)
        if base is None:
            self._note = "This version of PyTorch has no _BaseDataLoaderIter: waits for data are not recorded."
            return
        original = base.__next__

        @wraps(original)
        def timed_next(iterator: Any) -> Any:  # noqa: ANN401 - a batch is whatever the loader yields
            start_ns = perf_counter_ns()
            try:
                return original(iterator)
            finally:
                self._record(iterator, start_ns, perf_counter_ns())

        base.__next__ = timed_next
        self._base, self._original, self._wrapper = base, original, timed_next

    def stop(self) -> list[Path]:
        """Put the original back; everything is in the journal."""
        if self._withdraw is not None:
            self._withdraw()
        journal, self._journal = self._journal, None
        if self._base is not None and self._base.__next__ is self._wrapper:
            self._base.__next__ = self._original
        elif self._base is not None:
            self._note = (
                "Something else wrapped DataLoader as well; its wrapper calls ours, which does nothing any more."
            )
        if journal is not None:
            for loader in self._loaders.values():
                journal.metadata(f"dataloader.{loader.number}", json.dumps(loader.facts))
        return []

    def describe(self) -> dict[str, object]:
        """Return how many loaders were used, and how often one was waited for."""
        described: dict[str, object] = {"loaders": len(self._loaders), "waits": self._waits}
        return {**described, "note": self._note} if self._note else described

    def _record(self, iterator: object, start_ns: int, end_ns: int) -> None:
        journal = self._journal
        if journal is None:
            return
        self._waits += 1
        name, args = "DataLoader.__next__", {}
        try:
            loader = self._loader(iterator)
            name, args = loader.name, loader.args
        except Exception as error:  # noqa: BLE001 - law 1: a property of somebody's sampler raised; the span counts
            self._note = f"The facts of a loader could not be read: {type(error).__name__}: {error}"
        journal.span(name, "data", start_ns, end_ns, args)

    def _loader(self, iterator: object) -> _Loader:
        sampler = getattr(iterator, "_index_sampler", iterator)
        known = self._loaders.get(id(sampler))
        if known is None:
            known = self._loaders[id(sampler)] = _Loader(len(self._loaders), sampler, iterator)
        return known


class _Loader:
    """What is known about one loader, from the first iterator that was seen of it."""

    def __init__(self, number: int, sampler: object, iterator: object) -> None:
        self.number = number
        self.sampler = sampler
        self.facts = {key: plain(getattr(iterator, attribute, None)) for key, attribute in _FACTS.items()}
        self.facts["batch_size"] = plain(getattr(sampler, "batch_size", None))
        self.facts["dataset"] = type(getattr(iterator, "_dataset", None)).__name__
        self.name = f"DataLoader {number} ({self.facts['dataset']}).__next__"
        self.args = {"loader": number, "workers": self.facts["workers"], "batch_size": self.facts["batch_size"]}
