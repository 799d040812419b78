"""Calls of MindSpore's operators: read from their file, and put beside the operators that ran."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.read.mindspore import called_operators as mindspore_shapes
from stepscope.read.mindspore.called_operators import align
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.losses import LossLedger

NAMES = ["Mul", "ReLU", "MatMul", "Add", "ReduceSum"]


def aligned(ran: list[str], called: list[str]) -> list[tuple[int, int]]:
    return align(ran, [1] * len(ran), called, [0] * len(called))


@given(st.lists(st.sampled_from(NAMES), max_size=200))
def test_equal_sequences_pair_one_to_one(names: list[str]) -> None:
    assert aligned(names, names) == [(place, place) for place in range(len(names))]


@given(st.lists(st.sampled_from(NAMES), max_size=60), st.lists(st.sampled_from(NAMES), max_size=60))
def test_pairs_have_one_name_each_and_keep_the_order(ran: list[str], called: list[str]) -> None:
    pairs = aligned(ran, called)
    assert all(ran[one] == called[other] for one, other in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))


def test_an_operator_never_runs_before_its_call() -> None:
    assert align(["Mul", "Mul"], [5, 20], ["Mul"], [10]) == [(1, 0)]


def test_operators_without_a_call_cost_only_themselves() -> None:
    # Given: a training of 200 steps; the call of the third operator, a ReLU as another one later, was not seen
    step = ["MatMul", "Add", "ReLU", "MatMul", "Add", "ReLU", "Mul", "ReduceSum"]
    seen = [place for place in range(200 * len(step)) if place % len(step) != 2]
    ran = step * 200
    pairs = aligned(ran, [ran[place] for place in seen])
    assert [(one, seen[other]) for one, other in pairs] == [(place, place) for place in seen]


def test_noise_on_both_sides_does_not_spread() -> None:
    # Given: 2 % of the calls unseen, and 2 % that ran nothing
    chance = random.Random(1)
    truth = [chance.choice(NAMES) for _ in range(5000)]
    called = [(name, place) for place, name in enumerate(truth) if chance.random() > 0.02]
    called = [pair for one in called for pair in ([one, ("Mul", -1)] if chance.random() < 0.02 else [one])]
    pairs = aligned(truth, [name for name, _ in called])
    wrong = [pair for pair in pairs if called[pair[1]][1] != pair[0]]
    assert len(pairs) > 4700
    assert len(wrong) < 150


def calls_frame(*rows: tuple[int, str, str | None]) -> pl.DataFrame:
    columns = {"call_ts": pl.Int64, "call": pl.String, "call_shapes": pl.String}
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return frame.with_columns(
        call_thread=pl.lit(7, pl.Int64), dtypes=pl.lit('["Float32"]'), concrete=pl.lit('[""]')
    ).select("call_ts", "call_thread", "call", "call_shapes", "dtypes", "concrete")


def operators_frame(*rows: tuple[int, str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"ts": pl.Int64, "type": pl.String, "shapes": pl.String}, orient="row")


def test_one_call_may_run_several_operators_of_other_names() -> None:
    operators = operators_frame(
        (10, "MatMul", None),
        (11, "Add", None),
        (12, "ReduceSum", None),
        (13, "BatchMatMul", "[[9]]"),
        (14, "Mul", None),
    )
    calls = calls_frame(
        (1, "Dense", "[[4,5],[3,5],[3]]"),
        (2, "Reshape", "[[4]]"),
        (3, "SumExt", "[[4,3]]"),
        (4, "MatMulExt", "[[2,2,2],[2,2,2]]"),
        (5, "Muls", "[[4],[]]"),
    )
    ledger = LossLedger("test")
    joined = mindspore_shapes.join(operators, calls, ledger)
    assert joined["call"].to_list() == ["Dense", "Dense", "SumExt", "MatMulExt", "Muls"]
    # Then: what the call was given belongs to its first operator only, and MindSpore's own shapes stay
    assert joined["shapes"].to_list() == ["[[4,5],[3,5],[3]]", None, "[[4,3]]", "[[9]]", "[[4],[]]"]
    assert joined["dtypes"].to_list() == ['["Float32"]', None, *['["Float32"]'] * 3]
    assert joined["call_thread"].to_list() == [7] * 5
    assert not ledger.rows()


def test_operators_of_called_types_without_a_call_are_counted() -> None:
    operators = operators_frame((10, "Mul", None), (11, "Mul", None), (12, "Adam", None))
    ledger = LossLedger("test")
    joined = mindspore_shapes.join(operators, calls_frame((1, "Mul", "[[1]]")), ledger)
    assert joined["call_ts"].to_list() == [1, None, None]
    assert [(loss.what, loss.count) for loss in ledger.rows()] == [("operator_calls_unmatched", 1)]


def test_without_calls_nothing_changes() -> None:
    operators = operators_frame((10, "Mul", "[[1]]"))
    ledger = LossLedger("test")
    joined = mindspore_shapes.join(operators, mindspore_shapes.read([], ledger), ledger)
    assert joined.select(operators.columns).equals(operators)
    assert joined.select("call", "dtypes", "call_ts").null_count().row(0) == (1, 1, 1)
    assert not ledger.rows()


def test_operators_without_a_recorded_call_take_the_event_that_called_them() -> None:
    calls = mindspore_shapes.read([], LossLedger("test"))
    rows = [(10, "AddExt", None), (11, "ReduceSum", None), (12, "MaskedFill", None), (13, "Adam", None)]
    operators = mindspore_shapes.join(operators_frame(*rows), calls, LossLedger("test"))
    # Given: a method around the operator that it stands for, methods alone, and what is no call
    events = pl.DataFrame(
        [
            (1, 3, "RunOp", "tensor.add", 7),
            (2, 1, "RunOp", "AddExt", 7),
            (5, 1, "RunOp", "tensor.sum", 7),
            (7, 1, "NativeFunc", "tensor.masked_fill", 7),
            (8, 1, "DeviceTask", "Adam", 9),
        ],
        schema=["ts", "dur", "name", "op", "thread"],
        orient="row",
    )
    found = mindspore_shapes.with_events(operators, events)
    assert found.select("call_ts", "call_thread").rows() == [(2, 7), (5, 7), (7, 7), (None, None)]
    assert found["call"].null_count() == 4


def test_operators_of_a_graph_take_the_thread_that_waits_for_it() -> None:
    calls = mindspore_shapes.read([], LossLedger("test"))
    operators = mindspore_shapes.join(
        operators_frame((10, "Adam", None), (50, "Adam", None)), calls, LossLedger("test")
    )
    events = pl.DataFrame({"ts": [5], "dur": [20], "name": ["RunGraph"], "thread": [3]})
    found = mindspore_shapes.with_graphs(operators, events)
    assert found.select("call_ts", "call_thread").rows() == [(10, 3), (None, None)]


def write(path: Path, *blocks: dict[str, Any]) -> None:
    writer = FrameWriter(path)
    for block in blocks:
        writer.append(pack(block))
    writer.close()


BLOCK = {
    "anchors": [[0, 1000, 0], [100, 1100, 0]],
    "names": ["Mul", "[[2,3]]", '["Float32"]', '[""]'],
    "calls": {
        "thread": [7, 7],
        "time": [50, 60],
        "name": [0, 0],
        "shapes": [1, -1],
        "types": [2, -1],
        "values": [3, -1],
    },
}


def read(path: Path) -> tuple[pl.DataFrame, dict[str, int]]:
    ledger = LossLedger("test")
    return mindspore_shapes.read([path], ledger), {loss.what: loss.count for loss in ledger.rows()}


def test_a_file_is_read_with_times_since_the_epoch(tmp_path: Path) -> None:
    write(tmp_path / "shapes_0.ssj", BLOCK, {"closed": True})
    calls, lost = read(tmp_path / "shapes_0.ssj")
    assert calls.rows() == [
        (1050, 7, "Mul", "[[2,3]]", '["Float32"]', '[""]'),
        (1060, 7, "Mul", None, None, None),
    ]
    assert not lost


def test_a_file_of_a_killed_process_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shapes_0.ssj"
    write(path, BLOCK, BLOCK)
    path.write_bytes(path.read_bytes()[:-5])
    calls, lost = read(path)
    assert calls.height == 2
    assert lost == {"block_cut": 1, "ended_abruptly": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"name": [0, 9]},
        {"name": [0]},
        {"time": ["a", 1]},
        {"shapes": [1, -2]},
        {"thread": [1 << 70, 1]},
        {"time": None},
    ],
)
def test_a_block_that_is_none_of_ours_costs_that_block(tmp_path: Path, change: dict[str, Any]) -> None:
    broken = {**BLOCK, "calls": {**BLOCK["calls"], **change}}  # type: ignore[dict-item]
    write(tmp_path / "shapes_0.ssj", broken, BLOCK, {"closed": True})
    calls, lost = read(tmp_path / "shapes_0.ssj")
    assert calls.height == 2
    assert lost == {"journal_unreadable": 1}


def test_a_file_without_clocks_has_no_calls(tmp_path: Path) -> None:
    write(tmp_path / "shapes_0.ssj", {**BLOCK, "anchors": []}, {"closed": True})
    assert read(tmp_path / "shapes_0.ssj")[0].is_empty()
