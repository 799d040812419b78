"""Links between spans, and the files of one rank on one time line."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.read.assemble.assemble import assemble
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import ANY_WORK, GAPS, NOT_RECORDED
from stepscope.trace.tables import Frames, conform, empty, schema
from tests.conftest import WriteTrace
from tests.unit.read.kineto.test_kineto_reader import device, host


def names(tables: Frames) -> dict[int, str]:
    return dict(tables["spans"].select("id", pl.col("name").cast(pl.String)).iter_rows())


def flow(phase: str, identifier: int, ts: float, category: str, **place: Any) -> dict[str, Any]:
    return {"ph": phase, "id": identifier, "ts": ts, "cat": category, "name": "x", "pid": 1, "tid": 1, **place}


def journal(spans: list[tuple[str, str, int, int]], steps: list[tuple[int, int, int]]) -> dict[str, pl.DataFrame]:
    """Return a part as the journal's reader gives it: on thread 1 of process 1, with measured steps."""
    rows = [(number, 0, ts, dur, name, kind, 0) for number, (name, kind, ts, dur) in enumerate(spans)]
    thread = (0, "thread", 0, "", "cpu", 1, 1, None, "MainThread", 0)
    measured = [(number, ts, dur, None, "inferred", None) for number, ts, dur in steps]
    columns = schema("spans")
    wanted = {name: columns[name] for name in ("id", "track", "ts", "dur", "name", "kind", "depth")}
    return {
        "spans": pl.DataFrame(rows, schema=wanted, orient="row"),
        "tracks": pl.DataFrame([thread], schema=schema("tracks"), orient="row"),
        "steps": pl.DataFrame(measured, schema=schema("steps"), orient="row"),
        "metadata": empty("metadata"),
    }


def kineto_part(write_trace: WriteTrace, *events: dict[str, Any]) -> dict[str, pl.DataFrame]:
    from stepscope.read.kineto import kineto_reader as kineto

    return kineto.read(write_trace(events), LossLedger("trace.json"))


def test_device_work_has_its_launch_and_the_operator_around_it(write_trace: WriteTrace) -> None:
    # Given a kernel launched inside an operator, one launched outside, and one whose call is not there
    tables = read_files([write_trace([
        host("aten::add", 0, 50, **{"External id": 5}),
        host("cudaLaunchKernel", 10, 5, "cuda_runtime", correlation=1),
        host("cuLaunchKernel", 11, 1, "cuda_driver", correlation=1),
        host("cudaLaunchKernel", 60, 5, "cuda_runtime", correlation=2),
        device("inside", 20, 5, correlation=1),
        device("outside", 70, 5, correlation=2),
        device("lost", 90, 5, correlation=3),
    ])])  # fmt: skip
    # Then the outer call launched it, and what cannot be told is null and counted
    name = names(tables)
    found = [
        (name[row["span"]], name.get(row["launch"]), name.get(row["operator"]))
        for row in tables["kernels"].iter_rows(named=True)
    ]
    assert found == [
        ("inside", "cudaLaunchKernel", "aten::add"),
        ("outside", "cudaLaunchKernel", None),
        ("lost", None, None),
    ]
    assert tables["flows"].select(pl.col("kind").cast(pl.String)).to_series().to_list() == ["launch", "launch"]
    assert dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows()) == {
        "correlation_dangling": 1
    }


def test_an_operators_number_tells_where_the_launch_does_not(write_trace: WriteTrace) -> None:
    tables = read_files([write_trace([
        host("aten::add", 0, 5, **{"External id": 5}),
        device("named", 20, 5, **{"External id": 5, "correlation": 1}),
        device("repeated", 30, 5, **{"External id": 5, "correlation": 5}),
    ])])  # fmt: skip
    assert tables["kernels"]["operator"].to_list() == [0, None]


def test_work_without_numbers_is_linked_by_arrows(write_trace: WriteTrace) -> None:
    tables = read_files([write_trace([
        host("run", 10, 5, "mtia_runtime"),
        device("k", 30, 5, "mtia_ccp_events"),
        flow("s", 8, 11, "ac2g"),
        flow("f", 8, 30, "ac2g", pid=0, tid=7),
    ])])  # fmt: skip
    assert tables["kernels"]["launch"].to_list() == [0]
    assert tables["flows"].select("from", "to").rows() == [(0, 1)]


def test_a_closure_of_the_optimizers_step_holds_forward_and_backward(write_trace: WriteTrace) -> None:
    # Given a step of the optimizer that runs the model before it updates, as Lightning's does
    closure = host("Optimizer.step#SGD.step", 0, 100, "user_annotation")
    linear = host("aten::linear", 10, 20)
    forward = host("aten::mul", 12, 5, **{"Sequence number": 4, "Fwd thread id": 0})
    node = host("autograd::engine::evaluate_function: MulBackward0", 40, 20)
    backward = host("MulBackward0", 41, 10, **{"Sequence number": 4, "Fwd thread id": 1})
    tables = read_files([write_trace([closure, linear, forward, node, backward, host("aten::add_", 80, 5)])])
    # Then only the update is the optimizer's
    phases = tables["spans"].select(pl.col("name").cast(pl.String), pl.col("phase").cast(pl.String)).rows()
    assert phases == [
        ("Optimizer.step#SGD.step", "optimizer"),
        ("aten::linear", "forward"),
        ("aten::mul", "forward"),
        ("autograd::engine::evaluate_function: MulBackward0", "backward"),
        ("MulBackward0", "backward"),
        ("aten::add_", "optimizer"),
    ]


def test_forward_and_backward_are_linked_by_arrows_and_by_numbers(write_trace: WriteTrace) -> None:
    forward = host("aten::mul", 10, 5, **{"Sequence number": 4, "Fwd thread id": 0})
    outer = host("autograd::engine::evaluate_function: MulBackward0", 50, 20, tid=2)
    backward = host("MulBackward0", 51, 10, tid=2, **{"Sequence number": 4, "Fwd thread id": 1})
    inner = host("aten::mul", 52, 5, tid=2)
    arrows = [flow("s", 1, 10, "fwdbwd"), flow("f", 1, 51, "fwdbwd", tid=2), flow("f", 9, 51, "fwdbwd", tid=2)]
    events = [forward, outer, backward, inner, host("Optimizer.step#SGD.step", 100, 9, "user_annotation")]
    events += [host("aten::add_", 101, 2), host("aten::zeros", 200, 2)]
    events += [host("Optimizer.zero_grad#SGD.zero_grad", 300, 9, "user_annotation")]
    # When the file draws arrows, and when it does not
    for extra in ([], arrows):
        tables = read_files([write_trace([*events, *extra])])
        name, flows = names(tables), tables["flows"]
        # Then the forward operator leads to the node of the backward
        pairs = [(name[begin], name[end]) for begin, end in flows.select("from", "to").iter_rows()]
        assert pairs == [("aten::mul", "MulBackward0")]
        # And every operator has its part of the step
        phases = tables["spans"].select(pl.col("name").cast(pl.String), pl.col("phase").cast(pl.String)).rows()
        assert phases == [
            ("aten::mul", "forward"),
            ("Optimizer.step#SGD.step", "optimizer"),
            ("aten::add_", "optimizer"),
            ("aten::zeros", "other"),
            ("Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
            ("autograd::engine::evaluate_function: MulBackward0", "backward"),
            ("MulBackward0", "backward"),
            ("aten::mul", "backward"),
        ]
    # The arrow without a beginning is counted
    assert dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows()) == {"flow_dangling": 1}


def test_steps_are_the_marks_and_spans_lie_in_them_by_their_start(write_trace: WriteTrace) -> None:
    # Given two steps, a second mark of one, and one that overlaps
    tables = read_files([write_trace([
        host("ProfilerStep#3", 0, 10, "user_annotation"),
        host("ProfilerStep#4", 10, 10, "user_annotation"),
        host("ProfilerStep#4", 30, 10, "user_annotation"),
        host("ProfilerStep#5", 15, 10, "user_annotation", tid=2),
        host("aten::a", 5, 1),
        host("aten::b", 19.999, 50),
        host("aten::c", 20, 1),
        device("late", 12, 1),
    ])])  # fmt: skip
    assert tables["steps"].select("number", "ts", "dur", pl.col("source").cast(pl.String)).rows() == [
        (3, 0, 10000, "declared"),
        (4, 10000, 10000, "declared"),
    ]
    steps = dict(tables["spans"].select(pl.col("name").cast(pl.String), "step").iter_rows())
    assert [steps[name] for name in ("aten::a", "aten::b", "aten::c", "late")] == [3, 4, None, 4]
    assert dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())["step_overlap"] == 2


def test_a_step_whose_rounded_duration_reaches_into_the_next_one_ends_there(write_trace: WriteTrace) -> None:
    steps = [("ProfilerStep#3", 0, 10.001), ("ProfilerStep#4", 10, 11), ("ProfilerStep#5", 20, 10)]
    tables = read_files([write_trace([host(*step, "user_annotation") for step in steps])])
    assert tables["steps"].select("number", "ts", "dur").rows() == [(3, 0, 10000), (4, 10000, 10000), (5, 20000, 10000)]
    assert "step_overlap" not in tables["losses"]["what"].cast(pl.String).to_list()


def test_a_step_whose_duration_is_of_another_clock_than_its_begin_ends_where_the_next_begins(
    write_trace: WriteTrace,
) -> None:
    """Two clocks run apart by 50 ppm at most: 5 µs in a step of 100 ms."""
    steps = [(f"ProfilerStep#{step}", 100_000 * step, 100_005) for step in range(3)]
    tables = read_files([write_trace([host(*step, "user_annotation") for step in steps])])
    assert tables["steps"].select("number", "dur").rows() == [(0, 100_000_000), (1, 100_000_000), (2, 100_005_000)]
    assert "step_overlap" not in tables["losses"]["what"].cast(pl.String).to_list()


def test_the_files_of_a_rank_share_tracks_and_nest_in_each_other(write_trace: WriteTrace) -> None:
    # Given a trace and a journal of the same thread
    part = kineto_part(write_trace, host("aten::add", 12, 3), device("k", 20, 5, correlation=1))
    own = journal([("train", "annotation", 10_000, 90_000)], [(0, 10_000, 50_000)])
    # When they are put together
    tables = assemble([part, own], [LossLedger("a"), LossLedger("b")], rank=5, host="node1")
    # Then there is one thread, with the name that says more, and the operator lies in the user's range
    assert tables["tracks"].select("name", "rank", pl.col("host").cast(pl.String)).rows() == [
        ("MainThread", 5, "node1"),
        ("stream 7", 5, "node1"),
    ]
    spans = tables["spans"].select("id", pl.col("name").cast(pl.String), "parent", "depth", "step").rows()
    assert spans == [(0, "train", None, 0, 0), (1, "aten::add", 0, 1, 0), (2, "k", None, 0, 0)]
    assert tables["operators"]["span"].to_list() == [1]
    assert tables["kernels"]["span"].to_list() == [2]


def test_the_journals_steps_count_and_a_wait_counts_once(write_trace: WriteTrace) -> None:
    # Given both mark steps, and both measured the same wait for data
    loader = host("enumerate(DataLoader)#_Single.__next__", 11, 5, "user_annotation")
    part = kineto_part(write_trace, host("ProfilerStep#8", 10, 50, "user_annotation"), loader)
    own = journal([("next batch", "data", 10_500, 6_000)], [(0, 10_000, 50_000)])
    tables = assemble([part, own], [LossLedger("a"), LossLedger("b")])
    # Then the journal's are the steps and the wait
    assert tables["steps"].select("number", pl.col("source").cast(pl.String)).rows() == [(0, "inferred")]
    kinds = dict(tables["spans"].select(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)).iter_rows())
    assert kinds["next batch"] == "data"
    assert kinds["enumerate(DataLoader)#_Single.__next__"] == "annotation"
    # Where the journal has no waits, the trace's remain
    alone = assemble([part, journal([], [])], [LossLedger("a"), LossLedger("b")])
    assert "data" in alone["spans"]["kind"].cast(pl.String).to_list()


def test_numbers_of_different_files_do_not_mix(write_trace: WriteTrace) -> None:
    # Given two windows of one process, which number their launches alike
    def window(ts: float, name: str) -> dict[str, pl.DataFrame]:
        call = host("cudaLaunchKernel", ts, 5, "cuda_runtime", correlation=1)
        return kineto_part(write_trace, host(f"aten::{name}", ts, 9), call, device(name, ts + 20, 5, correlation=1))

    tables = assemble([window(1000, "b"), window(0, "a")], [LossLedger("a"), LossLedger("b")])
    # Then each kernel belongs to the operator of its own file
    name = names(tables)
    pairs = [
        (name[span], name[operator]) for span, operator in tables["kernels"].select("span", "operator").iter_rows()
    ]
    assert sorted(pairs) == [("a", "aten::a"), ("b", "aten::b")]


def test_spans_that_cross_are_counted_on_threads_only(write_trace: WriteTrace) -> None:
    tables = read_files([write_trace([host("a", 0, 10), host("b", 5, 10), device("x", 0, 10), device("y", 5, 10)])])
    assert (
        dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())["span_crosses_parent"] == 1
    )
    assert tables["spans"]["parent"].to_list() == [None, None, None, None]


def program(number: int, *names: str) -> pl.DataFrame:
    """Return a program whose first instruction contains the others."""
    rows = [(place, "jit_step", number, name, "add", "main", 0 if place else None) for place, name in enumerate(names)]
    wanted = {
        name: schema("instructions")[name]
        for name in ("id", "program", "program_id", "name", "opcode", "computation", "parent")
    }
    return pl.DataFrame(rows, schema=wanted, orient="row")


def test_programs_of_several_windows_stand_once_and_their_operators_find_them() -> None:
    # Given two windows that ran one program, and the second another one before it
    first = journal([("fusion", "operator", 0, 5)], [])
    first["instructions"] = program(7, "fusion", "add", "mul")
    first["operators"] = conform("operators", pl.DataFrame({"span": [0], "instruction": [0]}))
    second = journal([("other", "operator", 10, 5), ("mul", "operator", 20, 5), ("plain", "operator", 30, 5)], [])
    again = program(7, "fusion", "add", "mul").with_columns(pl.col("id") + 2, pl.col("parent") + 2)
    second["instructions"] = pl.concat([program(8, "fusion", "add"), again])
    ran = pl.DataFrame({"span": [0, 1, 2], "instruction": [1, 4, None]})
    second["operators"] = conform("operators", ran)
    # When they are put together
    tables = assemble([first, second], [LossLedger("a"), LossLedger("b")])
    # Then every program is there once, and each operator has the instruction it ran
    rows = tables["instructions"].select("id", "program_id", "name", "parent").cast({"name": pl.String}).rows()
    assert rows == [
        (0, 7, "fusion", None),
        (1, 7, "add", 0),
        (2, 7, "mul", 0),
        (3, 8, "fusion", None),
        (4, 8, "add", 3),
    ]
    found = tables["operators"].sort("span").select("span", "instruction")
    assert [(names(tables)[span], number) for span, number in found.rows()] == [
        ("fusion", 0),
        ("other", 4),
        ("mul", 2),
        ("plain", None),
    ]


def test_stacks_of_several_parts_have_numbers_of_their_own_and_nothing_else_takes_theirs() -> None:
    # Given two parts with a stack each, the second also with a pipeline
    parts = [journal([("add", "operator", start, 5)], []) for start in (0, 10)]
    for part in parts:
        frames = [[{"file": "train.py", "line": 1, "function": "main"}]]
        part["stacks"] = conform("stacks", pl.DataFrame({"id": [3], "frames": frames}))
        part["operators"] = conform("operators", pl.DataFrame({"span": [0], "stack": [3]}))
    lane = pl.DataFrame({"id": [0], "name": ["BatchOp"], "children": [[]], "track": [0]})
    parts[1]["pipeline"] = conform("pipeline", lane.with_columns(pl.col("children").cast(pl.List(pl.Int64))))
    # When they are put together
    tables = assemble(parts, [LossLedger("a"), LossLedger("b")])
    # Then the second stack's number is free, and operations of the pipeline keep theirs
    assert tables["stacks"]["id"].to_list() == [3, 7]
    assert tables["operators"].sort("span")["stack"].to_list() == [3, 7]
    assert tables["pipeline"].select("id", "track").rows() == [(0, 0)]


def test_tracks_are_one_where_their_places_are_and_the_better_name_wins() -> None:
    # Given a thread that only the second part has a name for, which is of the main thread in another order
    parts = [journal([("a", "operator", start, 5)], []) for start in (0, 10)]
    rows = [(0, "thread", 0, "", "cpu", 1, 2, None, "thread 2", 0), (1, "thread", 0, "", "cpu", 1, 1, None, "main", 1)]
    parts[0]["tracks"] = pl.DataFrame(rows, schema=schema("tracks"), orient="row")
    named = (0, "thread", 0, "", "cpu", 1, 2, None, "worker", 0)
    parts[1]["tracks"] = pl.DataFrame([named], schema=schema("tracks"), orient="row")
    # When they are put together for rank 4
    tables = assemble(parts, [LossLedger("a"), LossLedger("b")], rank=4, host="node1")
    # Then the main thread comes first, and the other has its name
    found = tables["tracks"].select("id", "name", "rank", pl.col("host").cast(pl.String))
    assert found.rows() == [(0, "main", 4, "node1"), (1, "worker", 4, "node1")]
    assert tables["spans"]["track"].to_list() == [1, 1]


@pytest.mark.parametrize(
    ("window", "kept", "recorded"),
    [
        ([(5, 0, 3), (6, 3, 6), (7, 6, 9)], [(5, 0, 3), (6, 3, 6), (7, 6, 9)], []),
        ([(5, 9, 12), (6, 12, 25), (7, 25, 32)], [(1, 10, 20), (2, 20, 30)], [1, 2]),
        ([(1, 10, 20), (2, 20, 30)], [(1, 10, 20), (2, 20, 30)], [1, 2]),
    ],
    ids=["no step is whole", "two are", "they were counted right"],
)
def test_parts_of_steps_give_way_to_the_steps_that_lie_whole_in_the_window(
    window: list[tuple[int, int, int]], kept: list[tuple[int, int, int]], recorded: list[int]
) -> None:
    # Given steps of the run that were counted anew, up to 30 ms, and what seemed to be steps in the window
    ms = 1_000_000
    run_steps = [(number, 10 * ms * number, 10 * ms, False) for number in range(6)]
    times = {
        **journal([], []),
        "run_steps": pl.DataFrame(run_steps, schema=["number", "ts", "dur", "recorded"], orient="row"),
        "metadata": conform("metadata", pl.DataFrame({"key": ["stepscope.steps_recount"], "value": [str(30 * ms)]})),
    }
    own = journal([], [(number, begin * ms, (end - begin) * ms) for number, begin, end in window])
    # When they are joined
    tables = assemble([own, times], [])
    # Then
    found = tables["steps"].select("number", pl.col("ts") // ms, end=(pl.col("ts") + pl.col("dur")) // ms)
    assert found.rows() == kept
    every = tables["run_steps"]
    assert every["number"].to_list() == [0, 1, 2, 3, 4, 5]
    assert every.filter("recorded")["number"].to_list() == recorded


@pytest.mark.parametrize(("lost_from", "steps", "unknown"), [(1500, 1, []), (900, 0, [json.dumps(ANY_WORK)])])
def test_where_no_step_is_whole_it_is_not_known_what_was_computed(
    lost_from: int, steps: int, unknown: list[str]
) -> None:
    # Given: two steps, and a recording of operators of which everything from a time on is lost
    marked = journal([("wait", "data", 0, 100)], [(0, 0, 1000), (1, 1000, 1000)])
    lost = pl.DataFrame({"key": [GAPS], "value": [json.dumps([(lost_from, None)])]})
    recorded = {**journal([("mm", "operator", 200, 300)], []), "metadata": conform("metadata", lost)}
    tables = assemble([marked, recorded], [LossLedger("")])
    assert tables["steps"].height == steps
    losses = tables["losses"].filter(pl.col("what").cast(pl.String) == "steps_not_recorded")
    assert losses["count"].to_list() == [2 - steps]
    assert tables["metadata"].filter(pl.col("key") == NOT_RECORDED)["value"].to_list() == unknown
