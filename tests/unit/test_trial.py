"""Two recordings of one program are compared: whatever differs is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.trace import tables
from stepscope.trace.tables import Frames
from stepscope.trial import differences

CAPTURE = Path(__file__).parents[1] / "data" / "kineto" / "alexnet_simple_add.json.gz"


@pytest.fixture(scope="module")
def kineto() -> Frames:
    """What Kineto recorded on a real GPU; kernels before copies."""
    frames = read_files([CAPTURE])
    return {**frames, "kernels": frames["kernels"].sort("registers", nulls_last=True)}


def found(ours: Frames, theirs: Frames) -> list[str]:
    return list(differences(tables.lazy(ours), tables.lazy(theirs)))


def first(name: str, change: pl.Expr) -> Callable[[Frames], Frames]:
    """Change the first row of a table."""

    def changed(frames: Frames) -> Frames:
        table = frames[name]
        return {**frames, name: pl.concat([table.head(1).with_columns(change), table.slice(1)])}

    return changed


def of_work(change: pl.Expr) -> Callable[[Frames], Frames]:
    """Change the spans of all device work."""

    def changed(frames: Frames) -> Frames:
        work = frames["spans"]["id"].is_in(frames["kernels"]["span"].implode())
        spans = frames["spans"].with_columns(pl.when(work).then(change).otherwise(pl.col(change.meta.output_name())))
        return {**frames, "spans": spans}

    return changed


def without_first(name: str) -> Callable[[Frames], Frames]:
    return lambda frames: {**frames, name: frames[name].slice(1)}


def test_the_same_is_the_same(kineto: Frames) -> None:
    assert kineto["kernels"].height > 10
    assert found(kineto, kineto) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (without_first("kernels"), "device: 1 fewer than Kineto's"),
        (first("kernels", pl.col("grid").list.eval(pl.element() + 1)), "device: 1 more than Kineto's"),
        (first("kernels", pl.col("registers") + 1), "device: 1 more"),
        (first("kernels", pl.lit(None, pl.Int64).alias("launch")), "device: 1 fewer"),
        (first("kernels", pl.lit(None, pl.Int64).alias("operator")), "device: 1 fewer"),
        (first("operators", pl.lit("[[7]]", pl.Categorical).alias("shapes")), "operators: 1 more"),
        (of_work(pl.col("dur") * 3), "ns, with Kineto for"),
        (of_work(pl.col("dur") // 3), "ns, with Kineto for"),
        (of_work(pl.col("ts") - 10**9), "begin before their launch"),
    ],
)
def test_what_differs_is_said(kineto: Frames, changed: Callable[[Frames], Frames], said: str) -> None:
    assert said in "; ".join(found(changed(kineto), kineto))


def test_memory_is_compared(kineto: Frames) -> None:
    rows = {"ts": [1, 2], "bytes": [512, -512], "device": ["cuda:0", "cuda:0"], "address": [7, 7]}
    frame = tables.conform("allocations", pl.DataFrame(rows))
    with_memory = {**kineto, "allocations": frame}
    assert found(with_memory, with_memory) == []
    assert found({**kineto, "allocations": frame.head(1)}, with_memory) == [
        "memory: 1 fewer than Kineto's 2, such as ('cuda:0', -512)"
    ]
