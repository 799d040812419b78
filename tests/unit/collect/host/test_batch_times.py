"""Batches of real loaders take as long as their samples and their collation say, in this process and in workers."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.collect.host.batch_times import BatchTimes

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
data = pytest.importorskip("torch.utils.data")
MS = 1_000_000


class Known(data.Dataset):  # type: ignore[misc]
    """A sample takes 4 ms of CPU time, and then waits 6 ms."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass
        time.sleep(0.006)
        return index


class Endless(data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        yield from range(5)


def collate(samples: list[int]) -> list[int]:
    time.sleep(0.005)
    return samples


@pytest.fixture
def times() -> Iterator[BatchTimes]:
    fetcher = vars(sys.modules[".".join(("torch.utils.data", "_utils", "fetch"))])["_MapDatasetFetcher"]
    before = fetcher.fetch
    made = BatchTimes()
    made.install()
    yield made
    made.remove()
    assert fetcher.fetch is before


def rows_of(times: BatchTimes) -> list[dict[str, Any]]:
    times.drain()
    names: list[str] = []
    columns = times.take(names, 1000)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{**row, "dataset": names[row["dataset"]]} for row in rows]


def check(row: dict[str, Any]) -> None:
    # Lower bounds only: another process may have had the core. CPU time is the thread's own, and has both.
    assert (row["dataset"], row["samples"]) == ("Known", 3)
    assert row["sample"] >= 30 * MS
    assert 12 * MS <= row["sample_cpu"] < 24 * MS
    assert row["sample"] - row["sample_cpu"] >= 17 * MS
    assert row["collate"] >= 5 * MS > row["collate_cpu"]
    assert row["dur"] >= row["sample"] + row["collate"]


def test_batches_that_the_training_process_makes(times: BatchTimes) -> None:
    batches = list(data.DataLoader(Known(), batch_size=3, collate_fn=collate))
    assert batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    rows = rows_of(times)
    assert [row["process"] for row in rows] == [os.getpid()] * 4
    for row in rows:
        check(row)
    assert rows_of(times) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_that_workers_make(times: BatchTimes, start: str) -> None:
    context = multiprocessing.get_context(start)
    context.set_forkserver_preload(["torch"])
    loader = data.DataLoader(Known(), batch_size=3, collate_fn=collate, num_workers=2, multiprocessing_context=context)
    assert [len(batch) for batch in loader] == [3] * 4
    rows = rows_of(times)
    assert len(rows) == 4
    assert len({row["process"] for row in rows} - {os.getpid()}) == 2
    for row in rows:
        check(row)
    assert times.lost == 0


def test_iterable_data_sets_and_batches_of_one(times: BatchTimes) -> None:
    assert [int(batch) for batch in data.DataLoader(Endless(), batch_size=None)] == list(range(5))
    assert [batch.tolist() for batch in data.DataLoader(Endless(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    rows = rows_of(times)
    assert {row["dataset"] for row in rows} == {"Endless"}
    assert [row["samples"] for row in rows] == [1] * 5 + [2] * 3  # of the last one, what was asked for


def test_an_error_of_the_data_set_is_the_programs(times: BatchTimes) -> None:
    def broken(samples: list[int]) -> list[int]:
        raise KeyError(*samples)

    with pytest.raises(KeyError):
        list(data.DataLoader(Known(), batch_size=1, collate_fn=broken))
    assert rows_of(times) == []


def test_without_shared_memory_only_workers_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(mmap, "mmap", refuse)
    times = BatchTimes()
    times.install()
    assert list(data.DataLoader(Known(), batch_size=6, collate_fn=len)) == [6, 6]
    assert len(rows_of(times)) == 2
    times.remove()


PADDED = {"input_ids": torch.ones(6), "attention_mask": torch.tensor([1, 1, 1, 1, 0, 0])}


@pytest.mark.parametrize(
    ("samples", "collate_fn", "sizes"),
    [
        ([torch.ones(3), torch.ones(5)], lambda found: torch.zeros(2, 8), (8, 5, 16)),
        ([([1, 2], 0), ([3], 1)], lambda found: (torch.zeros(2, 4), torch.zeros(2)), (3, 2, 8)),
        ([{"input_ids": [1], "x": 0}] * 2, lambda found: {"x": 0, "input_ids": torch.zeros(2, 6)}, (2, 1, 12)),
        ([torch.ones(4, 4)] * 2, None, (32, 16, 32)),
        ([PADDED, PADDED], lambda found: {"input_ids": torch.zeros(2, 6)}, (8, 4, 12)),
        ([{key: value.tolist() for key, value in PADDED.items()}] * 2, lambda found: torch.zeros(2, 6), (8, 4, 12)),
        ([1, 2], None, (0, 0, 0)),
        ([torch.ones(3), torch.ones(5)], lambda found: [len(one) for one in found], (0, 0, 0)),
    ],
    ids=["tensors", "lists with labels", "dictionaries", "images", "padded", "padded lists", "numbers", "no arrays"],
)
def test_sizes_of_samples_and_batch(
    times: BatchTimes, samples: list[Any], collate_fn: Any, sizes: tuple[int, ...]
) -> None:
    list(data.DataLoader(samples, batch_size=2, collate_fn=collate_fn))
    [row] = rows_of(times)
    assert (row["elements"], row["longest"], row["collated"]) == sizes
