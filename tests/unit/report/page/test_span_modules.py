"""The module of each span of a timeline."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.report.page.span_modules import span_modules
from stepscope.trace.tables import columns_of
from tests.unit.analyse.anatomy.test_own_operators import trained
from tests.unit.analyse.build import Rank


def test_a_module_has_its_operators_their_backward_pass_and_its_kernels() -> None:
    tables = trained().tables()
    spans = columns_of(tables, "spans", "id", "name").with_columns(pl.col("name").cast(pl.String))
    # Given: a timeline in another order than the table, which ends with what is no span
    row = np.append(spans["id"].to_numpy()[::-1], -1)
    found = span_modules(tables, row)
    assert found.texts == ["Net_0/Linear_0"]
    names = dict(spans.iter_rows())
    assert {names[number] for number in row[found.holding("linear")].tolist()} == {
        "aten::linear", "aten::addmm", "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0",
        "aten::mm", "gemm",
    }  # fmt: skip
    assert not found.holding("conv").any()


def test_without_modules_nothing_has_one() -> None:
    rank = Rank()
    rank.span(rank.thread(), "operator", 0, 10, "aten::mm")
    found = span_modules(rank.tables(), np.array([0]))
    assert (found.texts, found.holding("a").tolist()) == ([], [False])
