"""Batches of Paddle's loaders: made in this process, and in forked workers."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import paddle
import pytest

from stepscope.collect.host.batch_times import BatchTimes

MS = 1_000_000


class Known(paddle.io.Dataset):  # type: ignore[misc]
    """A sample waits 5 ms."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return np.full(2, index, "float32")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_take_as_long_as_their_samples(workers: int) -> None:
    times = BatchTimes()
    times.install()
    try:
        loader = paddle.io.DataLoader(Known(), batch_size=4, num_workers=workers, return_list=True)
        assert sorted(float(batch[0][0, 0] if isinstance(batch, list) else batch[0, 0]) for batch in loader) == [0, 4]
        times.drain()
        names: list[str] = []
        columns = times.take(names, 100)
    finally:
        times.remove()
    assert names == ["Known"]
    assert columns["samples"] == [4, 4]
    assert all(sample >= 20 * MS for sample in columns["sample"])
    assert all(cpu < 20 * MS for cpu in columns["sample_cpu"])
    assert (os.getpid() in columns["process"]) == (workers == 0)
