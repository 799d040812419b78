"""How long the batches of PyTorch's and Paddle's data loaders take to make, in the training process and in workers.

Both have an object that fetches a batch: it reads the samples (``__getitem__``), then collates them. A wrapper around
it notes when each part began, its CPU time, and the sizes of samples and batch. Workers write into memory that they
share with the training process. One that is forked inherits wrapper and memory; one that is spawned makes the wrapper
before the program's code runs, and opens the memory by the descriptor that the training process has of it.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.hooks.spawned_children import run_in_children
from stepscope.collect.journal.values import text
from stepscope.trace.blocks import OwnDescriptor

#: Module and classes of the objects that fetch.
_FETCHERS = (
    ("torch.utils.data._utils.fetch", ("_MapDatasetFetcher", "_IterableDatasetFetcher")),
    ("paddle.io.dataloader.fetcher", ("_MapDatasetFetcher", "_IterableDatasetFetcher")),
)
#: Modules that know whether their process is a worker.
_WORKERS = ("torch.utils.data._utils.worker", "paddle.io.dataloader.worker")
#: What a spawned child runs.
_FOLLOW = "from stepscope.collect.host.batch_times import BatchTimes; BatchTimes().follow({path!r}, {ring})"
#: Workers that live at a time, each with a ring; batches of a ring, and in the queue.
_RINGS, _ROOM, _QUEUED = 64, 512, 1 << 15
#: The fields of :class:`_Batch`, in their order.
_ROW = struct.Struct("<11q32s")
_COUNT = struct.Struct("<q")
#: Samples of a batch whose sizes are looked at.
_SIZED = 4096
_RING = _COUNT.size + _ROOM * _ROW.size


class _Batch(NamedTuple):
    """One row; times in ns, ``start`` of ``time.perf_counter_ns``.

    ``elements`` of all samples together, ``longest`` of one of them, and ``collated`` of the batch are 0 if unknown.
    """

    process: int
    start: int
    sample: int
    sample_cpu: int
    collate: int
    collate_cpu: int
    dur: int
    samples: int
    elements: int
    longest: int
    collated: int
    dataset: bytes


class _Collation:
    """Calls the program's collation, and keeps when it began and ended, and the sizes of what it got and made."""

    __slots__ = ("begin", "end", "function", "sizes")

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.begin = self.end = (0, 0)
        self.sizes = (0, 0, 0)

    def __call__(self, samples: Any) -> Any:  # noqa: ANN401 - the program's
        self.begin = perf_counter_ns(), thread_time_ns()
        result = self.function(samples)
        self.end = perf_counter_ns(), thread_time_ns()
        self.sizes = _sizes(samples, result)
        return result


def _sizes(samples: Any, batch: Any) -> tuple[int, int, int]:  # noqa: ANN401 - the program's
    """Return the elements of all samples, of the largest and of the batch, by their first arrays; zeros if unknown."""
    if not isinstance(samples, list) or not 0 < len(samples) <= _SIZED:
        return 0, 0, 0
    try:
        sizes, collated = [_attended(sample) or _elements(sample) for sample in samples], _elements(batch)
    except Exception:  # noqa: BLE001 - law 1: the program's objects may raise anything
        return 0, 0, 0
    known = min(sizes) > 0 and collated >= sum(sizes)
    return (sum(sizes), max(sizes), collated) if known else (0, 0, 0)


def _attended(sample: Any) -> int:  # noqa: ANN401 - the program's
    """Return the elements of a sample that its ``attention_mask`` tells from padding; 0 without a mask on the CPU."""
    mask: Any = sample.get("attention_mask") if isinstance(sample, Mapping) else None
    if type(mask).__module__ == "torch":
        mask = mask.numpy()
    return int(mask.sum() if hasattr(mask, "sum") else sum(mask)) if mask is not None else 0


def _elements(thing: Any) -> int:  # noqa: ANN401 - the program's
    """Return the elements of an array or a list of numbers, or of the first such field; 0 if unknown."""
    for _ in range(3):
        if isinstance(thing, Mapping):
            thing = thing["input_ids"] if "input_ids" in thing else next(iter(thing.values()))
        elif isinstance(thing, list | tuple) and thing and not isinstance(thing[0], int | float):
            thing = thing[0]
    if isinstance(thing, list):
        return len(thing)
    shape = getattr(thing, "shape", None)
    return math.prod(map(int, shape)) if shape else 0


class BatchTimes:
    """Times every batch from :meth:`install` to :meth:`remove`.

    Attributes:
        lost: Batches that were not kept, since the last :meth:`take`.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []
        self._rows: deque[_Batch] = deque()
        self._rings: mmap.mmap | None = None
        self._descriptor: OwnDescriptor | None = None
        self._read = [0] * _RINGS
        self._ring: int | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def install(self) -> None:
        """Wrap what fetches in the loaders that are imported, and in the others when they are."""
        try:
            self._descriptor = OwnDescriptor(os.memfd_create("stepscope-batches"))
            os.ftruncate(self._descriptor.number, _RINGS * _RING)  # pages that nobody writes are none
            self._rings = mmap.mmap(self._descriptor.number, _RINGS * _RING)
        except (AttributeError, OSError, ValueError):
            self._descriptor = self._rings = None  # batches of workers stay unknown
        _OPEN.add(self)
        self._wrap_when_imported()
        self._withdraw.append(run_in_children(self._hooks, "stepscope_batches", self._child))

    def follow(self, path: str, ring: int) -> None:
        """In a worker that was spawned: time its batches, and write them into a ring.

        Args:
            path: The memory of the process that trains.
            ring: The number of the ring.
        """
        with suppress(OSError, ValueError):  # another user's, or gone
            with Path(path).open("r+b", buffering=0) as memory:
                self._rings = mmap.mmap(memory.fileno(), _RINGS * _RING)
            self._ring = ring
            _OPEN.add(self)
            self._wrap_when_imported()

    def remove(self) -> None:
        """Unwrap it; idempotent. Workers that live on keep their wrapper."""
        while self._withdraw:
            self._withdraw.pop()()
        self._hooks.remove()
        _OPEN.discard(self)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and not descriptor.close() and self._rings is not None:
            _NEVER_CLOSED.append(self._rings)  # its own descriptor is the program's by now, too
            self._rings = None

    def close(self) -> None:
        """Give back the memory that workers write into, which has a descriptor; what they have written is lost."""
        rings, self._rings = self._rings, None
        if rings is not None:
            rings.close()

    def drain(self) -> int:
        """Take over what workers have written; return how many batches wait. Called by one thread at a time."""
        rings = self._rings
        if rings is None:
            return len(self._rows)
        for ring in range(_RINGS):
            begin = ring * _RING
            (count,) = _COUNT.unpack_from(rings, begin)
            first = max(self._read[ring], count - _ROOM)
            self.lost += first - self._read[ring]
            for place in range(first, count):
                row = _ROW.unpack_from(rings, begin + _COUNT.size + place % _ROOM * _ROW.size)
                self._keep(_Batch(*row))
            self._read[ring] = count
        return len(self._rows)

    def take(self, names: list[str], most: int) -> Mapping[str, list[int]]:
        """Remove the oldest batches, and return their columns.

        Args:
            names: Texts of the block; the names of data sets are added.
            most: How many batches at most.
        """
        rows = [self._rows.popleft() for _ in range(min(len(self._rows), most))]
        shown = [text(row.dataset.rstrip(b"\0").decode("utf-8", "replace")) for row in rows]
        names += sorted(set(shown) - set(names))
        columns = {field: [getattr(row, field) for row in rows] for field in _Batch._fields if field != "dataset"}
        return {**columns, "dataset": [names.index(name) for name in shown]}

    def _wrap_when_imported(self) -> None:
        for module, classes in _FETCHERS:
            self._withdraw.append(when_imported(module, partial(self._wrap, module, classes)))

    def _child(self) -> str | None:
        if self._descriptor is None or not any(name in sys.modules for name in _WORKERS):
            return None
        try:
            path = f"/proc/{os.getpid()}/fd/{self._descriptor.number}"
        except OSError:  # the program closed it
            return None
        _before_fork()
        return _FOLLOW.format(path=path, ring=_forks % _RINGS)

    def _wrap(self, module: str, classes: tuple[str, ...]) -> None:
        for name in classes:
            self._hooks.around(getattr(sys.modules[module], name, None), "fetch", self._fetch)

    def _fetch(self, original: Callable[..., Any], fetcher: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        collation = getattr(fetcher, "collate_fn", None)
        if not isinstance(collation, _Collation) and callable(collation):
            collation = fetcher.collate_fn = _Collation(collation)
        start, cpu = perf_counter_ns(), thread_time_ns()
        result = original(fetcher, *args, **kwargs)
        if isinstance(collation, _Collation) and collation.end[0] >= start:
            begin, end = collation.begin, collation.end
            asked = args[0] if args else None
            row = _Batch(
                process=_process,
                start=start,
                sample=begin[0] - start,
                sample_cpu=begin[1] - cpu,
                collate=end[0] - begin[0],
                collate_cpu=end[1] - begin[1],
                dur=perf_counter_ns() - start,
                samples=len(asked) if isinstance(asked, list | tuple) else 1,
                **dict(zip(("elements", "longest", "collated"), collation.sizes, strict=True)),
                dataset=type(getattr(fetcher, "dataset", None)).__name__.encode()[:32],
            )
            if self._ring is None:
                self._keep(row)
            elif self._rings is not None and _is_worker():
                self._write(self._rings, self._ring * _RING, row)
        return result

    def _keep(self, row: _Batch) -> None:
        if len(self._rows) < _QUEUED:
            self._rows.append(row)
        else:
            self.lost += 1

    @staticmethod
    def _write(rings: mmap.mmap, begin: int, row: _Batch) -> None:
        """Write a row, then its count: the reader, another process, never sees a row that is not whole."""
        (count,) = _COUNT.unpack_from(rings, begin)
        _ROW.pack_into(rings, begin + _COUNT.size + count % _ROOM * _ROW.size, *row)
        _COUNT.pack_into(rings, begin, count + 1)

    def become_worker(self, ring: int) -> None:
        """Write into a ring from here on: this process was forked. A child of a worker has none: it is another's."""
        if self._ring is not None:
            self._rings = None
        self._ring = ring
        self._rows.clear()


_OPEN: weakref.WeakSet[BatchTimes] = weakref.WeakSet()
_NEVER_CLOSED: list[mmap.mmap] = []
_process = os.getpid()
#: How many processes were forked, or are spawned: the next one gets this ring.
_forks = 0


def _is_worker() -> bool:
    """Return whether this process is a worker of a loader; one that trains has a recording of its own."""
    known = (getattr(sys.modules.get(name), "get_worker_info", None) for name in _WORKERS)
    return any(get_worker_info() is not None for get_worker_info in known if get_worker_info is not None)


def _before_fork() -> None:
    global _forks
    _forks += 1


def _after_fork() -> None:
    global _process
    _process = os.getpid()
    for times in list(_OPEN):
        times.become_worker(_forks % _RINGS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
