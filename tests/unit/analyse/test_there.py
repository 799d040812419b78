"""Whether a result has rows is told from the tables as its computation tells it, in every format that is read."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.analyse import there
from stepscope.analyse.results import Result, Results, kinds
from stepscope.trace.tables import Tables, complete, lazy
from tests.samples import DATA, SAMPLES

#: Captures whose pages are sure to have rows before anything is computed.
LARGE = {
    "a training on a CPU": DATA / "kineto" / "alexnet_simple_add.json.gz",
    "two ranks": DATA / "mindspore_cpu" / "two_ranks",
}


def has_rows(result: Result) -> bool:
    return len(result) > 0


def check(tables: Tables) -> set[str]:
    """Compare what is told of every result with its computation; return those that are told to have rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepscope.analyse.results.compute", refused)
        told = {name: Results(tables).there(name) for name in kinds()}
    computed = Results(tables)
    for name, said in told.items():
        if said or (said is False and not kinds()[name].optional):  # an optional one may have a row that says nothing
            assert has_rows(computed.compute(name)) == said, name
    return {name for name, said in told.items() if said}


def refused(name: str, _: Tables) -> Result:
    raise AssertionError(name)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_told_of_a_format_is_so(name: str, tmp_path: Path) -> None:
    rank = stepscope.open(SAMPLES[name](tmp_path)).ranks[0]
    check(rank.shown)


@pytest.mark.parametrize("name", LARGE)
def test_the_pages_of_a_training_are_known_before_anything_is_computed(name: str) -> None:
    for rank in stepscope.open(LARGE[name]).ranks:
        between = {"idle_time"} if name != "two ranks" else set()  # of operators alone, idle time is not known
        assert {"step_trace_time", "op_statistic"} | between <= check(rank.shown)


def test_nothing_is_sure_of_empty_tables() -> None:
    assert check(lazy(complete({}))) == set()


def test_a_choice_of_rows_may_be_empty() -> None:
    tables = dict(lazy(complete({})))
    tables["run_steps"] = tables["run_steps"].filter(pl.lit(value=True))
    assert there.run_steps(tables) is None
