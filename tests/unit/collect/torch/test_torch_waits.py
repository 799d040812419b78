"""Every next() of a real DataLoader is a span; the DataLoader behaves as without us."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.collect import annotations, frameworks
from stepscope.collect.torch.torch_waits import DataLoaderCollector
from tests.unit.collect.conftest import Recording
from tests.unit.collect.reading import read_journal

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
data = pytest.importorskip("torch.utils.data")
Base = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter

FIRST, SECOND = "DataLoader 0 (Slow).__next__", "DataLoader 1 (Slow).__next__"


class Slow(data.Dataset):  # type: ignore[misc]
    """Takes 5 ms a sample."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return index


@pytest.fixture(autouse=True)
def original() -> Iterator[Any]:
    before = Base.__next__
    yield before
    assert Base.__next__ is before


def test_each_wait_is_a_span_with_the_loaders_facts(recording: Recording) -> None:
    # Given: a loader in the process, run twice, and one with two workers
    plain = data.DataLoader(Slow(), batch_size=2)
    forked = data.DataLoader(Slow(), batch_size=3, num_workers=2, persistent_workers=False)
    collector = DataLoaderCollector()
    with recording.of(collector):
        batches = [batch.tolist() for loader in (plain, plain, forked) for batch in loader]
    # Then: the batches are what they are, and every next() is there, the last one of each epoch too
    assert batches == [[0, 1], [2, 3], [4, 5]] * 2 + [[0, 1, 2], [3, 4, 5]]
    found = recording.read()
    waits = [(span["name"], span["kind"], *span["args"].values()) for span in found.spans]
    cores = len(os.sched_getaffinity(0))
    assert waits == [(FIRST, "data", 0, 0, 2, cores)] * 8 + [(SECOND, "data", 1, 2, 3, cores)] * 3
    assert list(found.spans[0]["args"]) == ["loader", "workers", "batch_size", "cores"]
    # each as long as its samples take, and that for the end of an epoch is short
    assert all(span["dur"] >= 10_000_000 for index in (0, 4) for span in found.spans[index : index + 3])
    assert min(found.spans[index]["dur"] for index in (3, 7)) < 10_000_000
    assert collector.describe() == {"loaders": 2, "waits": 11}
    facts = found.metadata
    assert (facts["dataloader.0"]["workers"], facts["dataloader.1"]["workers"]) == (0, 2)
    assert facts["dataloader.1"]["dataset"] == "Slow"
    assert facts["dataloader.1"]["prefetch_factor"] == 2


class Annotated(data.Dataset):  # type: ignore[misc]
    """Uses annotations in the worker processes."""

    def __len__(self) -> int:
        return 8

    @stepscope.span("sample")
    def __getitem__(self, index: int) -> int:
        stepscope.counter("index", index)
        return index


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_workers_are_inert(recording: Recording) -> None:
    # Given: workers that are forked from a process that records, and that annotate
    annotations.bind(recording.journal)
    try:
        with recording.of(DataLoaderCollector()):
            loader = data.DataLoader(Annotated(), batch_size=2, num_workers=2, multiprocessing_context="fork")
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    finally:
        annotations.unbind()
    # Then: only the training process's own waits are there
    found = recording.read()
    assert [span["kind"] for span in found.spans] == ["data"] * 5
    assert (found.counters, found.counted, found.lost) == ([], {}, {})


def test_exceptions_pass_unchanged(recording: Recording) -> None:
    error = RuntimeError("the dataset's own")

    class Broken(data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise error

    with recording.of(DataLoaderCollector()):
        iterator = iter(data.DataLoader(Broken()))
        with pytest.raises(RuntimeError, match="the dataset's own") as caught:
            next(iterator)
        assert caught.value is error
        empty = iter(data.DataLoader(Slow(), sampler=[]))
        with pytest.raises(StopIteration):
            next(empty)
    assert len(recording.read().spans) == 2


def test_iterable_datasets(recording: Recording) -> None:
    class Stream(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    with recording.of(DataLoaderCollector()):
        assert len(list(data.DataLoader(Stream(), batch_size=None))) == 4
        assert len(list(data.DataLoader(Stream(), batch_size=2))) == 2
    assert [span["args"]["batch_size"] for span in recording.read().spans] == [None] * 5 + [2] * 3


def test_an_iterator_from_before_goes_on_after(recording: Recording) -> None:
    iterator = iter(data.DataLoader(Slow()))
    assert next(iterator) == 0
    with recording.of(DataLoaderCollector()):
        assert next(iterator) == 1
    assert next(iterator) == 2
    assert len(recording.read().spans) == 1


def test_somebody_else_wrapping_is_left_in_place(recording: Recording, original: Any) -> None:
    # Given: a tool that wraps our wrapper, and stays when we go
    collector = DataLoaderCollector()
    collector.prepare(recording.context)
    collector.start()
    ours = Base.__next__

    def theirs(iterator: Any) -> Any:
        return ours(iterator)

    Base.__next__ = theirs
    try:
        collector.stop()
        assert Base.__next__ is theirs
        assert [batch.tolist() for batch in data.DataLoader(Slow(), batch_size=3)] == [[0, 1, 2], [3, 4, 5]]
    finally:
        Base.__next__ = original
    assert "wrapped DataLoader too" in str(collector.describe()["note"])
    assert recording.read().spans == []


def test_a_sampler_that_raises_does_not_reach_the_training(recording: Recording) -> None:
    class Sampler(data.BatchSampler):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[0], [1]])

        def __len__(self) -> int:
            return 2

        @property
        def batch_size(self) -> int:
            raise RuntimeError("no size")

    collector = DataLoaderCollector()
    with recording.of(collector):
        assert len(list(data.DataLoader(Slow(), batch_sampler=Sampler()))) == 2
    found = recording.read()
    assert [(span["name"], span["args"]) for span in found.spans] == [("DataLoader.__next__", {})] * 3
    assert "no size" in str(collector.describe()["note"])


def test_without_torch_it_says_so_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", [])
    frameworks.is_found.cache_clear()
    collector = DataLoaderCollector()
    assert collector.available() == "PyTorch is not installed."
    assert collector.stop() == []
    assert "torch" not in sys.modules
    frameworks.is_found.cache_clear()


def test_a_loader_imported_during_the_window_is_seen(tmp_path: Path) -> None:
    # Given: a program that imports torch when the window is open already
    program = """
import sys
from pathlib import Path
import stepscope
from stepscope.collect import annotations
from stepscope.collect.torch.torch_waits import DataLoaderCollector
from stepscope.collect.protocol import Context
from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
journal = Journal(Path(sys.argv[1]) / "journal.ssj")
finders = list(sys.meta_path)
collector, unused = DataLoaderCollector(), DataLoaderCollector()
assert collector.available() is None and "torch" not in sys.modules
for each in (unused, collector):
    each.prepare(Context(0, Path(sys.argv[1]), Options(), journal))
    each.start()
unused.stop()
from torch.utils.data import DataLoader
assert [batch.tolist() for batch in DataLoader(range(3))] == [[0], [1], [2]]
collector.stop()
journal.close()
assert sys.meta_path == finders, sys.meta_path
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    spans = read_journal(tmp_path / "journal.ssj").spans
    assert [span["name"] for span in spans] == ["DataLoader 0 (range).__next__"] * 4
