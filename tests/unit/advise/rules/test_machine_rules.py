"""Threads that do not fit the cores, and other processes, are told by facts and by the kernel's own counts."""

from __future__ import annotations

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN


@pytest.mark.parametrize(
    ("threads", "machine", "causes"),
    [
        (16, {"cores": 2}, ["too-many-threads"]),
        (2, {"cores": 2}, []),
        (1, {"cores": 4}, ["too-few-threads"]),
        (2, {"cores": 8, "cpu_quota": 1.5}, []),
        (16, {}, []),
    ],
    ids=["too many", "one a core", "too few", "control group", "unknown"],
)
def test_threads_are_compared_with_cores(threads: int, machine: dict[str, float], causes: list[str]) -> None:
    training = Training(torch__state={"threads": threads}, machine=machine)
    training.call("aten::mm", 8_000_000, [[512, 512], [512, 512]], "forward", dtypes=["float", "float"])
    assert training.causes() == causes


def test_a_product_that_calls_another_operator_computes_itself() -> None:
    training = Training(torch__state={"threads": 16}, machine={"cores": 2})
    training.call("aten::mm", 8_000_000, [[512, 512], [512, 512]], "backward", dtypes=["float", "float"])
    training.call("aten::resolve_conj", 1000, [[512, 512]], "backward", inside=True, shift=5)
    [finding] = training.findings()
    assert finding.gain_ns == pytest.approx(0.6 * 8_000_000, rel=0.01)


@pytest.mark.parametrize(
    ("threads", "machine", "causes"),
    [
        (1, {"cores": 4, "cpus": 4, "local_ranks": 4}, []),
        (1, {"cores": 8, "cpus": 8, "local_ranks": 2}, ["too-few-threads"]),
        (1, {"cores": 8, "cpus": 8, "local_ranks": None}, []),
        (4, {"cores": 4, "cpus": 4, "local_ranks": 4}, ["too-many-threads"]),
        (4, {"cores": 4, "cpus": 16, "local_ranks": 4}, []),
    ],
    ids=["one core each", "four cores each", "unknown number of ranks", "all cores in each rank", "bound to cores"],
)
def test_ranks_of_one_machine_share_its_cores(threads: int, machine: dict[str, float], causes: list[str]) -> None:
    training = Training(torch__state={"threads": threads}, machine=machine)
    training.call("aten::mm", 8_000_000, [[512, 512], [512, 512]], "forward", dtypes=["float", "float"])
    observed = Observed(training.rank.tables(), {"world_size": 4})
    assert [finding.cause for finding in found_in(observed)] == causes


@pytest.mark.parametrize(("speed", "disturbed", "gain"), [(3.2e11, False, 4.4e6), (1.02e11, False, None),
                                                          (1.02e11, True, 4.8e6)])  # fmt: skip
def test_the_speed_of_all_cores_tells_what_more_threads_save(speed: float, disturbed: bool, gain: float | None) -> None:
    speeds = {"framework": "torch", "products": {"float32": {"flops_per_s": 1e11, "size": 1024}},
              "all_cores": {"flops_per_s": speed, "size": 1024}, "disturbed": disturbed}  # fmt: skip
    training = Training(torch__state={"threads": 1}, machine={"cores": 4}, machine__speeds=[speeds])
    training.call("aten::mm", 8_000_000, [[512, 512], [512, 512]], "forward", dtypes=["float", "float"])
    found = {finding.cause: finding.gain_ns for finding in training.findings()}
    assert found == ({} if gain is None else {"too-few-threads": pytest.approx(gain, rel=0.01)})


def test_hardware_threads_of_a_core_are_not_missing() -> None:
    training = Training(torch__state={"threads": 4}, machine={"cores": 8, "cpus": 8, "threads_per_core": 2})
    training.call("aten::mm", 8_000_000, [[512, 512], [512, 512]], "forward", dtypes=["float", "float"])
    assert training.causes() == []


def test_small_operators_need_no_threads() -> None:
    training = Training(torch__state={"threads": 1}, machine={"cores": 4})
    training.call("aten::add", 8_000_000, [[16], [16]], "forward")
    assert training.causes() == []


@pytest.mark.parametrize(
    ("delay", "others", "cores", "causes"),
    [
        (0.4, 90.0, 1, ["other-processes"]),
        (0.4, 0.0, 1, []),
        (0.1, 90.0, 1, []),
        (0.5, 40.0, 2, []),
    ],
    ids=["others", "nobody", "little", "its own threads have most of both cores"],
)
def test_waits_for_a_core_are_told_where_others_have_it(
    delay: float, others: float, cores: int, causes: list[str]
) -> None:
    training = Training(machine={"cores": cores})
    training.run_steps(delay=round(delay * STEP))
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        training.rank.add(
            "counters", ts=1_763_000_000_000_000_000 + at, track=track, name="other CPU", value=others, unit="%"
        )
    assert training.causes() == causes


@pytest.mark.parametrize(("own", "causes"), [(100.0, []), (50.0, ["other-processes"])])
def test_cores_that_the_process_may_not_use_take_none_from_it(own: float, causes: list[str]) -> None:
    # Given a process on one core of several, of which others use one, and which uses all or half of its own
    training = Training(machine={"cores": 1})
    training.run_steps(delay=round(0.5 * STEP))
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        for name, value in (("other CPU", 100.0), ("process CPU", own)):
            training.rank.add("counters", ts=ORIGIN + at, track=track, name=name, value=value, unit="%")
    assert training.causes() == causes


@pytest.mark.parametrize(("cpu", "causes"), [(STEP, ["other-processes"]), (STEP // 2, [])])
def test_a_window_in_which_nobody_else_had_the_core_hides_no_other_process(cpu: int, causes: list[str]) -> None:
    # Given a core that only the process uses in the window: its training thread alone, or other threads of it, too
    training = Training(machine={"cores": 1})
    training.run_steps(delay=round(0.5 * STEP), cpu=STEP // 2)
    for row in training.rank.rows["run_steps"][: training.steps]:
        row |= {"delay": STEP - cpu, "cpu": cpu}
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        for name in ("other CPU", "process CPU"):
            training.rank.add("counters", ts=ORIGIN + at, track=track, name=name, value=100.0, unit="%")
    assert training.causes() == causes


@pytest.mark.parametrize(("delay", "causes"), [(STEP // 2, ["other-processes"]), (0, [])])
def test_a_thread_that_computes_while_the_training_thread_sleeps_waits_for_a_core(
    delay: int, causes: list[str]
) -> None:
    # Given another thread that has most to do, as XLA's has in a program of JAX
    used = {"name": "tf_XLAEigen", "thread": 7, "cpu": 3 * STEP // 2, "delay": 3 * delay}
    training = Training(machine={"cores": 2}, threads=[used, {"name": "python", "thread": 8}])
    training.run_steps(delay=0, cpu=STEP // 8)
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        training.rank.add("counters", ts=ORIGIN + at, track=track, name="other CPU", value=190.0, unit="%")
    assert training.causes() == causes


@pytest.mark.parametrize(
    ("name", "thread", "causes"),
    [("python", 4711, []), ("stepscope-stack", 7, []), ("tf_XLAEigen", 7, ["other-processes"])],
)
def test_what_the_training_thread_waits_outside_of_steps_is_no_wait_of_theirs(
    name: str, thread: int, causes: list[str]
) -> None:
    # Given a window that is longer than its three steps, in which a thread has waited longer than these took
    used = {"name": name, "thread": thread, "cpu": 2 * STEP, "delay": 4 * STEP}
    training = Training(machine={"cores": 2}, threads=[used])
    training.run_steps(delay=0, cpu=STEP // 8)
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        training.rank.add("counters", ts=ORIGIN + at, track=track, name="other CPU", value=190.0, unit="%")
    found = found_in(Observed(training.rank.tables(), {"process": 4711}))
    assert [finding.cause for finding in found] == causes
    assert all((finding.gain_ns or 0) < STEP for finding in found)


@pytest.mark.parametrize(("others", "causes"), [(190.0, []), (390.0, ["other-processes"])])
def test_other_ranks_of_the_machine_are_not_other_processes(others: float, causes: list[str]) -> None:
    training = Training(machine={"cores": 4, "cpus": 4, "local_ranks": 4})
    training.run_steps(delay=round(0.4 * STEP))
    track = training.rank.track("counter", "cpu")
    for at in range(0, 3 * STEP, STEP // 2):
        training.rank.add("counters", ts=ORIGIN + at, track=track, name="other CPU", value=others, unit="%")
    observed = Observed(training.rank.tables(), {"world_size": 4})
    assert [finding.cause for finding in found_in(observed)] == causes


@pytest.mark.parametrize(
    ("threads", "delay", "computing", "told"),
    [(2, 3_000_000, 5_000_000, True), (2, 1_500_000, 5_000_000, False), (1, 3_000_000, 5_000_000, False),
     (7, 3_000_000, 5_000_000, False), (2, 3_000_000, 2_000_000, False)],
    ids=["beside workers", "a short wait", "one thread", "cores are left", "workers that do little"],
)  # fmt: skip
def test_threads_beside_the_workers_of_a_loader_wait_for_cores(
    threads: int, delay: int, computing: int, told: bool
) -> None:
    # Given workers that compute half of the time, and steps that wait for a core which no other process has
    training = Training(torch__state={"threads": threads}, machine={"cores": 8 if threads == 7 else 2})
    training.call("aten::mm", 6_000_000, [[512, 512], [512, 512]], "forward", dtypes=["float", "float"])
    waits = training.rank.span(training.rank.thread(), "data", 0, 1000, "loader.__next__")
    training.rank.add("arguments", span=waits, key="workers", value="4")
    training.run_steps(delay=delay, cpu=STEP - delay)
    made = {"sample_dur": computing, "sample_cpu": computing, "collate_dur": 0, "collate_cpu": 0}
    for number in range(40):
        at = {"ts": ORIGIN + number * STEP, "dur": computing}
        training.rank.add("batches", **at, dataset="Data", process=200, samples=8, **made)
    found = {finding.cause: finding for finding in training.findings()}
    assert ("too-many-threads" in found) == told
    if told:
        assert found["too-many-threads"].gain_ns == delay
        assert "torch.set_num_threads(1)" in found["too-many-threads"].remedy
