"""Waits for the next batch: every ``next()`` of a framework's data loader as a span of kind ``data``.

A framework's collector adds the location of its iterators' classes, and the facts of the loader behind an iterator.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.collect.frameworks import is_installed
from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.journal.values import plain

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context


#: Per thread: whether a loader makes a batch. One that it takes from is a part of it.
_INSIDE = threading.local()


def iterators_of(module: str, names: Iterable[str]) -> Iterator[type]:
    """Yield those of the named classes of an imported module, and of their subclasses, that have a ``__next__``."""
    kinds = [getattr(sys.modules[module], name) for name in names if hasattr(sys.modules[module], name)]
    while kinds:
        kind = kinds.pop()
        if "__next__" in vars(kind):
            yield kind
        kinds.extend(kind.__subclasses__())


class DataWaits(ABC):
    """Wraps ``__next__`` of the iterators of a framework's loaders."""

    name: ClassVar[str]
    #: The framework's title and package, the module and names of the iterators' classes, and the first word of spans.
    #: ``awaited`` is imported last, where that is not the module itself.
    product: ClassVar[str]
    framework: ClassVar[str]
    module: ClassVar[str]
    iterator_classes: ClassVar[tuple[str, ...]]
    loader_class: ClassVar[str]
    awaited: ClassVar[str] = ""
    #: Fact → attribute of the iterator. All are private: a version of the framework may lack one.
    attributes: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._journal: Journal | None = None
        self._hooks = MethodHooks()
        # By id() of the loader's representative. _Loader holds a reference: a freed object's id could be reused.
        self._loaders: dict[int, _Loader] = {}
        self._waits = 0
        self._note = ""
        self._withdraw: Callable[[], None] | None = None

    @abstractmethod
    def loader_of(self, iterator: Any) -> object:  # noqa: ANN401 - the framework's iterator
        """Return an object that represents the loader of an iterator; all iterators of a loader return the same."""

    def facts_of(self, loader: Any, iterator: Any, /) -> dict[str, Any]:  # noqa: ANN401 - the framework's own
        """Return the settings of a loader as plain values; at least ``dataset``, ``workers`` and ``batch_size``."""
        facts = {key: plain(getattr(iterator, attribute, None)) for key, attribute in self.attributes.items()}
        facts["batch_size"] = plain(getattr(loader, "batch_size", None))
        facts["dataset"] = type(getattr(iterator, "_dataset", None)).__name__
        return facts

    def available(self) -> str | None:
        """Return why data loaders cannot be recorded here, or None."""
        return None if is_installed(self.framework) else f"{self.product} is not installed."

    def prepare(self, context: Context) -> None:
        """Keep the journal for the spans."""
        self._journal = context.journal

    def start(self) -> None:
        """Wrap ``__next__``, now or once the program has imported the data loader."""
        self._withdraw = when_imported(self.awaited or self.module, self._wrap)

    def _wrap(self) -> None:
        for name in self.iterator_classes:
            kinds = list(iterators_of(self.module, (name,)))
            if not kinds:
                self._note = f"This version of {self.product} has no {name}: waits for data are not recorded."
            for kind in kinds:
                self._wrap_class(kind)

    def _wrap_class(self, kind: Any) -> None:  # noqa: ANN401 - a class of iterators
        original = kind.__next__

        @wraps(original)
        def timed_next(iterator: Any) -> Any:  # noqa: ANN401 - a batch is whatever the loader yields
            if getattr(_INSIDE, "loader", False):
                return original(iterator)
            _INSIDE.loader = True
            start_ns = perf_counter_ns()
            try:
                return original(iterator)
            finally:
                _INSIDE.loader = False
                self._record(iterator, start_ns, perf_counter_ns())

        self._hooks.put(kind, "__next__", timed_next)

    def stop(self) -> list[Path]:
        """Restore the original; all spans are in the journal."""
        if self._withdraw is not None:
            self._withdraw()
        journal, self._journal = self._journal, None
        if not self._hooks.remove():
            other = f"Other code has wrapped {self.loader_class} too"
            self._note = f"{other}; its wrapper still calls ours, which is a no-op after the window."
        if journal is not None:
            for loader in self._loaders.values():
                journal.metadata(f"{self.name}.{loader.number}", json.dumps(loader.facts))
        return []

    def describe(self) -> dict[str, object]:
        """Return the numbers of loaders and of waits."""
        described: dict[str, object] = {"loaders": len(self._loaders), "waits": self._waits}
        return {**described, "note": self._note} if self._note else described

    def _record(self, iterator: object, start_ns: int, end_ns: int) -> None:
        journal = self._journal
        if journal is None:
            return
        self._waits += 1
        name, args = f"{self.loader_class}.__next__", {}
        try:
            loader = self._loader(iterator)
            name, args = loader.name, loader.args
        except Exception as error:  # noqa: BLE001 - law 1: a property of the program's sampler raised; the span counts
            self._note = f"The facts of a loader could not be read: {type(error).__name__}: {error}"
        journal.span(name, "data", start_ns, end_ns, args)

    def _loader(self, iterator: object) -> _Loader:
        identity = self.loader_of(iterator)
        known = self._loaders.get(id(identity))
        if known is None:
            facts = self.facts_of(identity, iterator)
            known = self._loaders[id(identity)] = _Loader(len(self._loaders), identity, facts, self.loader_class)
        return known


class _Loader:
    """Facts of one loader, from its first iterator in the window."""

    def __init__(self, number: int, identity: object, facts: dict[str, Any], kind: str) -> None:
        self.number = number
        self.identity = identity
        self.facts = facts
        self.name = f"{kind} {number} ({facts['dataset']}).__next__"
        self.args = {
            "loader": number,
            "workers": facts["workers"],
            "batch_size": facts["batch_size"],
            "cores": _cores(),
        }


def _cores() -> int | None:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
