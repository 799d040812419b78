"""Why a device is idle: one reason for each instant, and together exactly the idle time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.idle.idle_reasons import idle_reasons, idle_time
from stepscope.analyse.step.step_trace_time import step_trace_time
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import ORIGIN, Rank

US = 1000


def reasons(tables: Tables) -> dict[tuple[str | None, ...], float]:
    rows = idle_reasons(tables).rows(named=True)
    return {(row["Reason"], row["Name"], row["Operator"]): row["Total Time(us)"] for row in rows}


class Training(Rank):
    """A step of 1,000 µs on one GPU: kernel from 0 to 100 µs, launched before; times in µs."""

    def __init__(self) -> None:
        super().__init__()
        self.step(0, 0, 1000 * US)
        self.main, self.gpu = self.thread(11), self.stream()
        self.launched(-20, 0, 100)

    def host(self, kind: str, ts: int, dur: int, name: str, **more: object) -> int:
        return self.span(self.main, kind, ts * US, dur * US, name, **more)

    def launched(self, call: int, ts: int, dur: int, returns: int = 5) -> None:
        launch = self.host("runtime", call, returns, "cudaLaunchKernel")
        kernel = self.span(self.gpu, "kernel", ts * US, dur * US, "gemm")
        self.add("kernels", span=kernel, device=0, launch=launch)


def test_the_launching_thread_says_what_a_device_waits_for() -> None:
    rank = Training()
    rank.host("data", 90, 110, "next batch")  # 100 to 200 of the gap
    rank.host("operator", 200, 330, "aten::linear")
    rank.host("operator", 250, 100, "aten::addmm")
    rank.host("garbage", 400, 30, "generation 2")
    rank.host("runtime", 450, 40, "cudaMalloc")
    rank.host("compile", 490, 10, "compile f")
    rank.launched(500, 512, 488)
    assert reasons(rank.tables()) == {
        ("data wait", "next batch", None): 100,
        ("host preparing", None, "aten::linear"): 50 + 50 + 20,
        ("host preparing", None, "aten::addmm"): 100,
        ("garbage collection", "generation 2", "aten::linear"): 30,
        ("allocator", "cudaMalloc", "aten::linear"): 40,
        ("compiling", "compile f", "aten::linear"): 10,
        ("launch latency", "cudaLaunchKernel", "aten::linear"): 12,
    }


def test_the_call_in_which_a_gap_begins_gets_the_time_until_the_next_launch() -> None:
    rank = Training()
    rank.host("operator", 60, 60, "aten::item")
    rank.host("runtime", 70, 40, "cudaStreamSynchronize")  # the kernel ends at 100
    rank.host("operator", 120, 130, "aten::add")
    rank.launched(200, 210, 790)
    found = reasons(rank.tables())
    assert found == {
        ("synchronising call", "cudaStreamSynchronize", "aten::item"): 10 + 10 + 80 + 10,
    }


def test_work_that_was_launched_before_the_gap_is_queued() -> None:
    rank = Training()
    rank.launched(50, 103, 97)
    rank.launched(60, 700, 300)
    assert reasons(rank.tables()) == {("queued", None, None): 3 + 500}


def test_latency_beyond_a_tenth_of_a_millisecond_is_not_the_launch() -> None:
    rank = Training()
    rank.launched(300, 600, 400, returns=100)
    assert reasons(rank.tables()) == {
        ("nothing known", None, None): 200,
        ("launch latency", "cudaLaunchKernel", None): 100,
        ("queued", None, None): 200,
    }


def test_another_thread_that_launches_tells_what_the_launching_one_waits_for() -> None:
    rank = Training()
    rank.host("operator", 100, 200, "aten::loss")
    backward = rank.thread(12)
    call = rank.span(backward, "runtime", 300 * US, 5 * US, "cudaLaunchKernel")
    kernel = rank.span(rank.gpu, "kernel", 310 * US, 690 * US)
    rank.add("kernels", span=kernel, device=0, launch=call)
    assert reasons(rank.tables()) == {
        ("host preparing", None, "aten::loss"): 200,
        ("launch latency", "cudaLaunchKernel", None): 10,
    }


def test_a_collective_on_the_host_names_the_ranks_that_meet() -> None:
    rank = Training()
    call = rank.host("collective", 150, 350, "gloo:all_reduce")
    rank.add("collectives", span=call, operation="allreduce", group_ranks="[0, 3]")
    rank.launched(500, 500, 500)
    assert reasons(rank.tables())["collective", "allreduce of ranks [0, 3]", None] == 350


def test_a_collective_that_launches_a_kernel_prepares_it() -> None:
    rank = Training()
    call = rank.host("collective", 150, 360, "nccl:all_reduce")
    rank.add("collectives", span=call, operation="allreduce", group_ranks="[0, 3]")
    rank.launched(500, 500, 500)
    assert reasons(rank.tables())["host preparing", "nccl:all_reduce", None] == 350


def sample(rank: Rank, ts: int, stack: int, state: str, count: int = 1) -> None:
    rank.add("samples", ts=ORIGIN + ts * US, dur=20 * US, count=count, process=11, thread=11, name="MainThread",
             state=state, stack=stack)  # fmt: skip


def test_looks_at_the_thread_share_out_what_nothing_else_explains() -> None:
    """Given 400 µs of which nothing is known, and 8 looks in it, then each line has its share of the looks."""
    rank = Training()
    for number, line in enumerate((41, 7)):
        frames = [{"file": "/usr/lib/python3.11/json/decoder.py", "line": 1, "function": "decode"}] if number else []
        frames.append({"file": "/home/me/train.py", "line": line, "function": "tokenize"})
        rank.add("stacks", id=number, frames=frames)
    rank.launched(500, 500, 500)
    for place, (stack, state) in enumerate([(0, "python")] * 3 + [(1, "native")] + [(1, "lock")] * 2):
        sample(rank, 110 + 20 * place, stack, state)
    sample(rank, 300, 0, "core", count=2)  # looks at 300 and 310 µs
    sample(rank, 600, 0, "python", count=9)  # while the device works
    rows = idle_reasons(rank.tables()).select("Reason", "Name", "Line", "Samples", "Total Time(us)").rows()
    tokenize = "/home/me/train.py:{} tokenize"
    assert sorted(rows, key=str) == sorted(
        [
            ("python", None, tokenize.format(41), 3, 150.0),
            ("python", None, tokenize.format(7), 1, 50.0),
            ("waiting", "lock", tokenize.format(7), 2, 100.0),
            ("waiting for a core", None, tokenize.format(41), 2, 100.0),
        ],
        key=str,
    )


def test_few_looks_claim_nothing() -> None:
    rank = Training()
    rank.add("stacks", id=0, frames=[{"file": "/home/me/train.py", "line": 1, "function": "f"}])
    rank.launched(500, 500, 500)
    for place in range(4):
        sample(rank, 120 + 20 * place, 0, "python")
    assert reasons(rank.tables()) == {("nothing known", None, None): 400}


def test_run_queue_delay_that_fits_nowhere_else_lies_in_the_unknown_time() -> None:
    """Given 900 µs of delay in a step of which 600 µs are work, then at least 300 µs of it lie in the other 400."""
    rank = Training()
    rank.launched(500, 500, 500)  # the kernel before it takes 100
    rank.add("run_steps", number=0, ts=ORIGIN, dur=1000 * US, recorded=True, delay=900 * US)
    rows = idle_reasons(rank.tables()).select("Reason", "Total Time(us)").rows()
    assert rows == [("waiting for a core", 300.0), ("nothing known", 100.0)]


def test_the_line_is_that_of_the_operators_stack_or_of_the_function_around_it() -> None:
    rank = Training()
    rank.host("python", 110, 300, "train.py(12): forward")
    rank.host("python", 115, 290, "torch/nn/modules/module.py(1501): _call_impl")
    rank.host("operator", 120, 80, "aten::mm")
    stacked = rank.host("operator", 200, 100, "aten::mul")
    rank.add("stacks", id=0, frames=[{"file": "/home/me/model.py", "line": 3, "function": "scale"}])
    rank.add("operators", span=stacked, stack=0)
    rank.launched(500, 500, 500)
    rows = {(row["Reason"], row["Operator"]): row["Line"] for row in idle_reasons(rank.tables()).rows(named=True)}
    assert rows["host preparing", "aten::mm"] == "train.py:12 forward"
    assert rows["host preparing", "aten::mul"] == "/home/me/model.py:3 scale"
    assert rows["python", None] == "train.py:12 forward"


def test_without_a_device_the_gaps_are_those_between_operators() -> None:
    rank = Rank()
    rank.step(0, 0, 1000 * US)
    main = rank.thread(11)
    rank.span(main, "operator", 0, 300 * US, "aten::mm")
    rank.span(main, "data", 400 * US, 200 * US, "next batch")
    rank.span(main, "operator", 700 * US, 250 * US, "aten::add")
    rows = idle_reasons(rank.tables()).select("Device_id", "Reason", "Next", "Gaps", "Total Time(us)").rows()
    assert sorted(rows, key=str) == [
        ("cpu", "data wait", None, 0, 200.0),
        ("cpu", "nothing known", "aten::add", 1, 200.0),
        ("cpu", "nothing known", None, 1, 50.0),
    ]


PIECES = st.lists(
    st.tuples(
        st.sampled_from(
            ["kernel", "memcpy", "operator", "runtime", "wait", "data", "python", "garbage", "compile", "collective"]
        ),
        st.integers(-20, 130),
        st.integers(0, 60),
        st.integers(0, 3),
        st.integers(0, 30),
    ),
    max_size=14,
)


@given(PIECES)
@pytest.mark.parametrize("sampled", [False, True])
def test_the_reasons_add_up_to_the_idle_time(sampled: bool, pieces: list[tuple[str, int, int, int, int]]) -> None:
    rank = Rank()
    rank.step(0, 0, 50)
    rank.step(1, 50, 70)
    threads, streams = [rank.thread(1), rank.thread(2)], [rank.stream(1), rank.stream(2), rank.stream(7, "cuda:1")]
    for kind, start, duration, lane, before in pieces:
        if kind in ("kernel", "memcpy"):
            work = rank.span(streams[lane % 3], kind, start, duration)
            call = rank.span(threads[lane % 2], "runtime", start - before, before // 2, "cudaLaunchKernel")
            rank.add("kernels", span=work, device=lane % 3 // 2, launch=call if lane else None)
        elif kind == "wait":
            rank.span(threads[lane % 2], "runtime", start, duration, "cudaDeviceSynchronize")
        else:
            rank.span(threads[lane % 2], kind, start, duration, f"{kind} {lane}")
    if sampled:
        rank.add("stacks", id=0, frames=[{"file": "/home/me/train.py", "line": 1, "function": "f"}])
        rows = [(place * 3, state) for place, state in enumerate(["python", "lock", "core", "gil"] * 10)]
        for ts, state in rows:
            rank.add("samples", ts=ORIGIN + ts, dur=3, count=1, process=1, thread=1, name="m", state=state, stack=0)
    tables = rank.tables()
    rows_of_time = idle_time(tables).rows(named=True)
    for row in rows_of_time:
        parts = {name: value for name, value in row.items() if name.endswith("(us)")}
        idle, _, _ = (parts.pop(name) for name in ("Idle(us)", "Total(us)", "Start Time(us)"))
        assert round(1000 * sum(parts.values())) == round(1000 * idle)
        assert min(parts.values()) >= 0
    whole = sum(round(1000 * row["Idle(us)"]) for row in rows_of_time)
    assert sum(round(1000 * time) for time in idle_reasons(tables)["Total Time(us)"]) == whole
    if len({row["Device_id"] for row in rows_of_time}) == 1:
        steps = step_trace_time(tables)
        assert round(1000 * (steps["Free"] - steps["Copy(Not Overlapped)"]).sum()) == whole
