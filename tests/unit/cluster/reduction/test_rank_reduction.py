"""What a rank is reduced to: every column that the analyses of a job rely on, from tables built by hand."""

from __future__ import annotations

import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.rank_summary import decode, encode, job_tables
from stepscope.cluster.reduction.rank_reduction import reduce
from tests.unit.analyse.build import ORIGIN, Rank

IMPORTED = {"rank": 0, "world_size": 2, "source": "import"}


def job_of(rank: Rank, **manifest: object) -> JobTables:
    return job_tables([decode(encode(reduce(rank.tables(), {**IMPORTED, **manifest}, directory="rank0")))])


def on_a_device() -> Rank:
    """One step: a kernel, an all-reduce that it hides for half of its time, and a second one that never runs."""
    rank = Rank()
    host, stream, other = rank.thread(), rank.stream(7), rank.stream(20)
    rank.step(4, 0, 1_000)
    first = rank.span(host, "operator", 0, 100, "aten::mm", step=4, phase="forward")
    call = rank.span(host, "runtime", 10, 20, "cudaLaunchKernel", step=4)
    kernel = rank.span(stream, "kernel", 100, 300, "gemm", step=4)
    rank.add("kernels", span=kernel, device=0, launch=call, operator=first)
    reduced = rank.span(host, "collective", 150, 40, "nccl:all_reduce", step=4)
    call = rank.span(host, "runtime", 160, 20, "cudaLaunchKernel", step=4)
    work = rank.span(other, "collective", 300, 200, "ncclDevKernel_AllReduce", step=4)
    rank.add("kernels", span=work, device=0, launch=call, operator=reduced)
    hung = rank.span(host, "collective", 600, 30, "nccl:all_reduce", step=4)
    ranks = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "transport": "nccl"}
    rank.add("collectives", span=work, operation="AllReduce", bytes_in=64, dtype="float", sequence=0, **ranks)
    rank.add("collectives", span=hung, operation="all_reduce", bytes_in=64, dtype="float", sequence=1, **ranks)
    return rank


def test_a_call_without_work_is_a_collective_that_was_not_launched() -> None:
    found = job_of(on_a_device()).collectives
    assert found["operation"].to_list() == ["allreduce", "allreduce"]
    assert found["launched"].to_list() == [True, False]
    assert found["launch"].to_list() == [ORIGIN + 160, ORIGIN + 600]
    assert found["exposed"].to_list() == [100, 30]
    assert found["step"].to_list() == [4, 4]
    assert found["group"].to_list() == [0, 0]


def test_steps_of_the_device_stay_where_they_are() -> None:
    """The work of each of three steps was launched in the step before: its steps are where the device begins them."""
    rank = Rank()
    host, stream = rank.thread(), rank.stream(7)
    for number in range(3):
        begin = 1_000 * (number + 1)
        rank.step(number, begin, 1_000)
        call = rank.span(host, "runtime", begin - 500, 20, "cudaLaunchKernel")
        kernel = rank.span(stream, "kernel", begin, 900, "gemm", step=number)
        rank.add("kernels", span=kernel, device=0, launch=call)
    steps = job_of(rank).steps
    assert [ts - ORIGIN for ts in steps["ts"]] == [1_000, 2_000, 3_000]
    assert steps["dur"].to_list() == [1_000] * 3
    assert steps["computing"].to_list() == [900] * 3


def test_the_time_of_the_first_names_is_whole_however_many_modules_call_them() -> None:
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 18_000)
    for number in range(90):
        call = rank.span(host, "operator", 200 * number, 50 + number, "aten::mm", step=0, phase="forward")
        rank.add("operators", span=call, module=f"layers/{number}")
        rank.span(host, "operator", 200 * number + 150, 1, f"aten::other{number % 40}", step=0, phase="forward")
    rows = job_of(rank).operators
    assert rows["total"].sum() == sum(50 + number for number in range(90)) + 90
    products = rows.filter(pl.col("name") == "aten::mm")
    assert (products["count"].sum(), products["total"].sum()) == (90, sum(50 + number for number in range(90)))
    assert products.filter(pl.col("module") == "(others)")["count"].to_list() == [90 - len(products) + 1]


def test_calls_of_gloo_work_on_the_host() -> None:
    rank = on_a_device()
    rank.rows["collectives"][1]["transport"] = "gloo"
    assert job_of(rank).collectives["launched"].to_list() == [True, True]


def test_parts_and_what_is_not_recorded() -> None:
    step = job_of(on_a_device()).steps.row(0, named=True)
    assert (step["computing"], step["communication"], step["overlapped"]) == (300, 100, 100)
    assert step["preparing"] == 100
    assert (step["garbage"], step["cpu"], step["delay"], step["data_total"]) == (None,) * 4


def test_the_phases_of_a_step_add_up_to_it() -> None:
    rank = on_a_device()
    phases = {"gemm": "forward", "ncclDevKernel_AllReduce": "communication"}
    for span in rank.rows["spans"]:
        span["phase"] = phases.get(span["name"])
    steps = job_of(rank).steps
    others = steps["forward", "backward", "optimizer", "data", "evaluation", "checkpoint", "other"].sum_horizontal()
    assert steps["communication_phase"].to_list() == [100]
    assert (others + steps["communication_phase"]).equals(steps["dur"], check_names=False)


def test_a_recording_of_our_own_knows_that_nothing_was_collected() -> None:
    assert job_of(on_a_device(), source="recording").steps["garbage"].to_list() == [0]


def test_operators_have_self_times_and_kernels_durations_without_communication() -> None:
    found = job_of(on_a_device()).operators.select("kind", "name", "phase", "count", "total").rows()
    assert found == [("kernel", "gemm", None, 1, 300), ("operator", "aten::mm", "forward", 1, 100)]
    assert job_of(on_a_device()).operators["operator"].to_list() == ["aten::mm", None]


def test_names_beyond_the_first_are_the_others() -> None:
    rank = Rank()
    thread = rank.thread()
    rank.step(0, 0, 100_000)
    for number in range(80):
        rank.span(thread, "operator", 1000 * number, 100 + number, f"op{number}", step=0)
    found = job_of(rank).operators
    assert found.height == 61
    others = found.row(found["name"].to_list().index("(others)"), named=True)
    assert (others["count"], others["total"]) == (20, sum(100 + number for number in range(20)))
    assert found["total"].sum() == sum(100 + number for number in range(80))


def test_the_fingerprint_is_of_what_usually_runs() -> None:
    def program(*names: str, extra: bool = False) -> str | None:
        rank = Rank()
        thread = rank.thread()
        for step in range(3):
            rank.step(step, 1_000 * step, 1_000)
            for place, name in enumerate((*names, *(["aten::item"] if extra and step == 1 else []))):
                rank.span(thread, "operator", 1_000 * step + 100 * place, 50, name, step=step)
        code: str | None = job_of(rank).ranks["code"].item()
        return code

    assert program("a", "b") == program("b", "a")
    assert program("a", "b") == program("a", "b", extra=True)  # a step in which something else runs is not usual
    assert program("a", "b") != program("a", "b", "b")


def test_times_from_an_arbitrary_origin_are_no_wall_clock() -> None:
    assert job_of(on_a_device()).ranks["wall_clock"].item()
    rank = Rank()
    thread = rank.thread()
    rank.span(thread, "operator", 5, 10, "a")
    rank.rows["spans"][0]["ts"] = 5
    assert not job_of(rank).ranks["wall_clock"].item()


def test_a_rank_without_steps_has_one_over_its_whole_range() -> None:
    rank = Rank()
    rank.span(rank.thread(), "operator", 5, 10, "a")
    tables = job_of(rank)
    assert tables.steps.select("step", "dur").rows() == [(0, 10)]
    assert tables.ranks["step_count"].item() == 0


def test_a_rank_without_anything_is_a_row() -> None:
    tables = job_of(Rank())
    assert tables.ranks.height == 1
    assert tables.steps.is_empty()
    assert tables.operators.is_empty()


def far_ahead() -> Rank:
    """Two steps of 100 ns on the host, whose device works 200 ns for each, and an all-reduce of 100 ns at the end."""
    rank = Rank()
    host, stream = rank.thread(), rank.stream(7)
    names = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "transport": "nccl", "operation": "allreduce"}
    for step in (0, 1):
        rank.step(step, 100 * step, 100)
        rank.span(host, "data", 100 * step, 30, "next", step=step)
        for place, kind in ((40, "kernel"), (60, "collective")):
            call = rank.span(host, "runtime", 100 * step + place, 10, "cudaLaunchKernel", step=step)
            begin = 100 + 300 * step + (200 if kind == "collective" else 0)
            inside = 1 if begin < 200 else None
            work = rank.span(stream, kind, begin, 200 if kind == "kernel" else 100, "gemm", step=inside)
            rank.add("kernels", span=work, device=0, launch=call)
            if kind == "collective":
                rank.add("collectives", span=work, **names)
    return rank


def test_a_step_ends_when_the_device_has_done_what_the_host_asked_for() -> None:
    found = job_of(far_ahead())
    assert found.steps.select("ts", "dur").rows() == [(ORIGIN, 400), (ORIGIN + 400, 300)]
    assert found.steps.select("computing", "communication").rows() == [(200, 100), (200, 100)]
    assert found.collectives["step"].to_list() == [0, 1]
    assert found.operators.filter(kind="kernel").select("step", "total").rows() == [(0, 200), (1, 200)]


def test_what_only_the_host_does_is_counted_between_its_own_marks() -> None:
    assert job_of(far_ahead()).steps["data_total"].to_list() == [30, 30]


def test_recorded_steps_end_there_already() -> None:
    assert job_of(far_ahead(), source="recording").steps["dur"].to_list() == [100, 100]
