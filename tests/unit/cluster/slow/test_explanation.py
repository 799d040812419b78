"""What a rank takes longer is explained by the one thing that leaves least unexplained."""

from __future__ import annotations

import math
from collections.abc import Callable

import polars as pl
import pytest

from stepscope.cluster.slow.explanation import explain

Slower = Callable[[str, str], float]
NAMES = {"mm": 30.0, "softmax": 12.0, "add": 5.0, "norm": 8.0}
MODULES = ("Net/layer1", "Net/layer2/attention", "Net/layer2/mlp", "Net/layer3")


def work(slower: Slower, *, modules: bool = True) -> pl.DataFrame:
    """Return the work of a rank whose operators take longer by a factor that depends on name and module."""
    rows = [
        {
            "name": name,
            "operator": None,
            "module": module if modules else None,
            "phase": "forward",
            "peers_ns": took,
            "total_ns": took * slower(name, module) * (1 + 0.004 * math.sin(i)),
        }
        for i, (name, took, module) in enumerate((n, t, m) for n, t in NAMES.items() for m in MODULES)
    ]
    rows.append(
        {"name": "adam", "operator": None, "module": None, "phase": "optimizer", "peers_ns": 20.0, "total_ns": 20.0}
    )
    return pl.DataFrame(rows, schema_overrides={"module": pl.String, "operator": pl.String})


@pytest.mark.parametrize(
    ("slower", "what", "values", "ratio"),
    [
        (lambda name, _: 1.5 if name == "mm" else 1.0, "name", ("mm",), 1.5),
        (lambda _, module: 1.5 if module == "Net/layer3" else 1.0, "module", ("Net/layer3",), 1.5),
        (lambda _, module: 2.0 if "layer2" in module else 1.0, "module", ("Net/layer2",), 2.0),
        (lambda name, _: 1.5 if name in ("mm", "norm") else 1.0, "names", ("mm", "norm"), 1.5),
    ],
)
def test_the_cause_is_named(slower: Slower, what: str, values: tuple[str, ...], ratio: float) -> None:
    found = explain(work(slower))
    assert found is not None
    assert (found.what, found.values) == (what, values)
    assert found.ratio == pytest.approx(ratio, rel=0.01)


def test_an_operator_is_named_whose_kernel_works_for_others_too() -> None:
    """One kernel multiplies for forward and backward; a kernel that is slow for all of them is named itself."""
    forward = work(lambda *_: 1.0, modules=False).with_columns(operator=pl.format("aten::{}", "name"))
    backward = forward.with_columns(operator=pl.format("{}_backward", "name"), phase=pl.lit("backward"))

    def slower(where: pl.Expr) -> pl.DataFrame:
        total = pl.when(where).then(1.5 * pl.col("total_ns")).otherwise("total_ns")
        return pl.concat([forward, backward]).with_columns(total.alias("total_ns"))

    found = explain(slower(pl.col("operator") == "aten::mm"))
    assert found is not None
    assert (found.what, found.values) == ("operator", ("aten::mm",))
    found = explain(slower(pl.col("name") == "mm"))
    assert found is not None
    assert (found.what, found.values) == ("name", ("mm",))


def test_an_operator_that_is_slow_in_one_module_names_both() -> None:
    found = explain(work(lambda name, module: 3.0 if (name, module) == ("mm", "Net/layer2/mlp") else 1.0))
    assert found is not None
    assert (found.what, found.values, found.module) == ("name", ("mm",), "Net/layer2/mlp")


def test_all_work_by_one_factor_names_nothing() -> None:
    slower = work(lambda *_: 1.3).with_columns(
        pl.when(pl.col("name") == "adam").then(26.0).otherwise("total_ns").alias("total_ns")
    )
    found = explain(slower)
    assert found is not None
    assert (found.what, found.values) == ("all", ())
    assert found.alike == pytest.approx(1)


def test_work_that_only_the_rank_does() -> None:
    extra = pl.DataFrame(
        {
            "name": ["log"],
            "operator": [None],
            "module": [None],
            "phase": ["other"],
            "peers_ns": [0.0],
            "total_ns": [9.0],
        },
        schema_overrides={"module": pl.String, "operator": pl.String},
    )
    found = explain(pl.concat([work(lambda *_: 1.0), extra]))
    assert found is not None
    assert (found.what, found.values, found.ratio) == ("name", ("log",), math.inf)


def test_a_rank_that_is_not_slower_has_none() -> None:
    assert explain(work(lambda *_: 0.9)) is None
    assert explain(work(lambda *_: 1.0).clear()) is None
