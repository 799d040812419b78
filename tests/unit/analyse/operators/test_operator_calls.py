"""Operators: self time, device time, and the results made of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.analyse.operators.operator_calls import device_time, host_operators
from stepscope.analyse.operators.operator_details import operator_details
from tests.unit.analyse.build import ORIGIN, Rank


def nested() -> Rank:
    """linear(100 µs) around a Python function around addmm(40), which launches a kernel; then a collective."""
    rank = Rank()
    host, stream = rank.thread(11), rank.stream()
    outer = rank.span(host, "operator", 0, 100_000, "aten::linear", step=4)
    rank.span(host, "python", 10_000, 60_000, "f")
    inner = rank.span(host, "operator", 20_000, 40_000, "aten::addmm", step=4)
    launch = rank.span(host, "runtime", 30_000, 5_000, "cudaLaunchKernel", correlation=9)
    rank.span(host, "collective", 110_000, 10_000, "record_param_comms")
    kernel = rank.span(stream, "kernel", 200_000, 30_000, "gemm", correlation=9)
    fill = rank.span(stream, "memset", 240_000, 1_000, "Memset", correlation=10)
    rank.add("kernels", span=kernel, device=0, stream=7, launch=launch, operator=inner)
    rank.add("kernels", span=fill, device=0, stream=7, launch=launch, operator=outer)
    rank.add("operators", span=inner, shapes="[[2,3]]", dtypes='["float"]', stack=5, module="Net/Linear", flops=12)
    frames = [{"file": "a.py", "line": 3, "function": "f"}, {"file": "b.py", "line": None, "function": "<module>"}]
    rank.add("stacks", id=5, frames=frames)
    rank.add("stacks", id=6, frames=[])
    return rank


def test_self_time_leaves_out_operators_inside_whatever_lies_between() -> None:
    operators = host_operators(nested().tables())
    assert operators.select("name", "self", "outer").rows() == [
        ("aten::linear", 60_000, -1),
        ("aten::addmm", 40_000, 0),
        ("record_param_comms", 10_000, -1),
    ]


def test_device_time_adds_up_from_the_inside() -> None:
    tables = nested().tables()
    own, total = device_time(tables, host_operators(tables))
    assert own.tolist() == [1_000, 30_000, 0]
    assert total.tolist() == [31_000, 30_000, 0]


def test_op_statistic_has_kernels_by_device_then_operators() -> None:
    frame = op_statistic(nested().tables())
    assert frame.columns == [
        "Device_id",
        "Model Name",
        "OP Type",
        "Core Type",
        "Count",
        "Total Time(us)",
        "Min Time(us)",
        "Avg Time(us)",
        "Max Time(us)",
        "Ratio(%)",
    ]
    assert frame.rows() == [
        ("cuda:0", None, "gemm", "kernel", 1, 30.0, 30.0, 30.0, 30.0, 96.774),
        ("cuda:0", None, "Memset", "memset", 1, 1.0, 1.0, 1.0, 1.0, 3.226),
        ("cpu", None, "aten::linear", "operator", 1, 60.0, 60.0, 60.0, 60.0, 54.545),
        ("cpu", None, "aten::addmm", "operator", 1, 40.0, 40.0, 40.0, 40.0, 36.364),
        ("cpu", None, "record_param_comms", "collective", 1, 10.0, 10.0, 10.0, 10.0, 9.091),
    ]


def test_operator_details_has_every_call() -> None:
    frame = operator_details(nested().tables())
    assert frame.columns[:7] == [
        "Name",
        "Input Shapes",
        "Call Stack",
        "Host Self Duration(us)",
        "Host Total Duration(us)",
        "Device Self Duration(us)",
        "Device Total Duration(us)",
    ]
    assert frame.height == 3
    inner = frame.row(1, named=True)
    assert inner["Call Stack"] == "a.py(3): f; b.py: <module>"
    assert (inner["Host Self Duration(us)"], inner["Device Total Duration(us)"]) == (40.0, 30.0)
    assert (inner["Input Data Types"], inner["Step ID"], inner["Thread ID"]) == ('["float"]', 4, 11)
    assert str(inner["Start Time(us)"]) == f"{(ORIGIN + 20_000) // 1000}.000"
    assert (inner["Module"], inner["FLOPs"]) == ("Net/Linear", 12)


def test_a_parent_that_is_not_there_is_no_parent() -> None:
    """Given tables cut to some steps, where parents may be missing, then operators are outermost."""
    tables = dict(nested().tables())
    tables["spans"] = tables["spans"].filter(tables["spans"].collect()["id"] > 0)
    assert host_operators(tables)["outer"].to_list() == [-1, -1]


SPANS = st.lists(
    st.tuples(st.sampled_from(("operator", "collective", "python")), st.integers(0, 40), st.integers(0, 30)),
    max_size=10,
)


@given(SPANS)
def test_self_times_of_properly_nested_operators_add_up_to_the_threads_time(spans: list[tuple[str, int, int]]) -> None:
    rank = Rank()
    thread = rank.thread()
    placed: list[tuple[str, int, int]] = []
    for kind, ts, dur in spans:
        crosses = any(
            min(ts + dur, a + d) > max(ts, a) and not _one_holds_the_other(ts, dur, a, d) for _, a, d in placed
        )
        if not crosses:
            placed.append((kind, ts, dur))
            rank.span(thread, kind, ts, dur)
    covered = {i for kind, ts, dur in placed if kind != "python" for i in range(ts, ts + dur)}
    own = host_operators(rank.tables())["self"]
    assert (own >= 0).all()
    assert own.sum() == len(covered)


def _one_holds_the_other(ts: int, dur: int, other: int, length: int) -> bool:
    return (ts <= other and other + length <= ts + dur) or (other <= ts and ts + dur <= other + length)
