"""Rows of the table of situations that need MindSpore: what is recorded, whatever the program does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import polars as pl
import pytest
from mindspore import nn
from mindspore.profiler import ProfilerLevel as TheirLevel
from mindspore.profiler import schedule as their_schedule
from mindspore.profiler.schedule import ProfilerAction as TheirAction

import stepscope
from stepscope.compat.mindspore import (
    HostSystem,
    Profiler,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    handler,
    profile,
    recorder,
    schedule,
    tensorboard_trace_handler,
)

pytestmark = pytest.mark.filterwarnings("ignore")

Step = Callable[[], Any]


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(16, 4)

    def construct(self, x: Any) -> Any:
        return self.fc(x)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(handler, "chosen", (None, None))
    yield
    while (leader := recorder.running_leader()) is not None:
        leader.end()


@pytest.fixture(params=["GRAPH_MODE", "PYNATIVE_MODE"])
def step(request: pytest.FixtureRequest) -> Step:
    """A training step of a small network, which has run before."""
    ms.set_context(mode=getattr(ms, request.param), device_target="CPU")
    network = Net()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    cell = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    values, labels = ms.Tensor(np.ones([8, 16], np.float32)), ms.Tensor(np.ones([8], np.int32))
    cell(values, labels).asnumpy()
    return lambda: cell(values, labels).asnumpy()


def recorded(directory: str = "data") -> list[Path]:
    return sorted(path.parent for path in Path(directory).glob("*/rank0/manifest.json"))


def operators(rank: Path, name: str = "BiasAdd") -> int:
    spans = stepscope.open(rank).tables["spans"].filter(kind="operator").collect()
    return spans.filter(pl.col("name").cast(pl.String) == name).height


def numbers(rank: Path) -> list[int]:
    return stepscope.open(rank).tables["steps"].collect()["number"].to_list()


def test_two_profiles_at_once(step: Step) -> None:
    first = profile()
    step()
    second = profile()
    step()
    first.stop()
    step()
    second.stop()
    step()
    assert [operators(recorded_by.rank_path) for recorded_by in first.recorded] == [2]
    assert [operators(recorded_by.rank_path) for recorded_by in second.recorded] == [2, 1]


def test_a_profiler_and_a_profile_that_starts_and_stops_inside(step: Step) -> None:
    outer = Profiler()
    with profile(on_trace_ready=tensorboard_trace_handler("data")):
        step()
    step()
    outer.analyse()
    (rank,) = recorded()
    assert operators(rank) == 2
    assert (rank / "results" / "op_statistic.csv").exists()


def test_many_windows_in_one_process(step: Step) -> None:
    prof = profile(start_profile=False)
    for count in (1, 2, 3):
        prof.start()
        for _ in range(count):
            step()
        prof.stop()
        step()
    assert [operators(recorded_by.rank_path) for recorded_by in prof.recorded] == [1, 2, 3]


def test_a_second_object_after_the_first(step: Step) -> None:
    for _ in range(2):
        profiler = Profiler()
        step()
        profiler.stop()
    assert [operators(rank) for rank in recorded()] == [1, 1]


def test_an_exception_inside_the_training(step: Step) -> None:
    with pytest.raises(ZeroDivisionError), profile(schedule=schedule(wait=0, active=5)) as prof:
        step()
        prof.step()
        step()
        raise ZeroDivisionError
    (rank,) = recorded()
    assert stepscope.open(rank).manifest["status"] == "failed at step 1"
    assert operators(rank) == 2


def test_steps_of_the_schedule_hold_their_operators(step: Step) -> None:
    with profile(schedule=schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)) as prof:
        for _ in range(10):
            step()
            prof.step()
    assert [numbers(rank) for rank in recorded()] == [[3, 4], [7, 8]]
    for rank in recorded():
        spans = stepscope.open(rank).tables["spans"].filter(kind="operator").collect()
        found = spans.filter(pl.col("name").cast(pl.String) == "BiasAdd")["step"].to_list()
        assert found == numbers(rank)


def test_stop_in_the_middle_of_a_cycle_keeps_what_was_recorded(step: Step) -> None:
    told = []
    with profile(schedule=schedule(wait=1, active=5), on_trace_ready=lambda prof: told.append(prof.step_num)) as prof:
        for _ in range(3):
            step()
            prof.step()
    (rank,) = recorded()
    assert (told, numbers(rank)) == ([3], [1, 2])
    assert operators(rank) == 2


def test_mindspores_own_words_are_understood(step: Step) -> None:
    config = _ExperimentalConfig(profiler_level=TheirLevel.Level0)
    cycle = their_schedule(wait=1, warmup=1, active=1, repeat=1)
    with profile(schedule=cycle, experimental_config=config) as prof:
        for _ in range(4):
            step()
            prof.step()
    (rank,) = recorded()
    assert numbers(rank) == [2]


def test_members_equal_mindspores_own() -> None:
    cycle = schedule(wait=1, warmup=1, active=1, repeat=1)
    assert [cycle(step) for step in range(3)] == [TheirAction.NONE, TheirAction.WARM_UP, TheirAction.RECORD_AND_SAVE]
    assert {TheirLevel.Level1: "found"}[ProfilerLevel.Level1] == "found"
    assert TheirLevel.Level0 != ProfilerLevel.Level1
    assert TheirLevel.Level0 != ProfilerActivity.CPU


def test_every_switch_that_a_cpu_serves(step: Step) -> None:
    config = _ExperimentalConfig(sys_io=True, host_sys=[HostSystem.CPU, HostSystem.MEM], mstx=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        with_stack=True,
        profile_memory=True,
        data_process=True,
        parallel_strategy=True,
        record_shapes=True,
        experimental_config=config,
    ) as prof:
        for _ in range(3):
            step()
    prof.analyse()
    (rank,) = recorded()
    run = stepscope.open(rank)
    assert operators(rank) == 3
    shapes = run.tables["operators"].collect()["shapes"].cast(pl.String).drop_nulls()
    assert shapes.len() > 0
    assert run.tables["allocations"].collect().height > 0
    names = {path.name for path in (rank / "results").iterdir()}
    assert {"memory_record.csv", "operator_memory.csv", "operator_details.csv"} <= names


def test_the_pipeline_starts_and_stops_as_often_as_one_likes() -> None:
    """MindSpore's own dies on the next pipeline where its collection starts again without an init."""
    import mindspore.dataset as ds

    for _ in range(2):
        prof = profile(data_process=True)
        data = ds.NumpySlicesDataset(np.ones([32, 4], np.float32), ["x"], shuffle=False).batch(4)
        assert sum(1 for _ in data.create_tuple_iterator(num_epochs=1)) == 8
        prof.stop()
        assert sum(1 for _ in data.create_tuple_iterator(num_epochs=1)) == 8
    assert len(recorded()) == 2


def test_a_window_that_never_begins_says_so(step: Step, caplog: pytest.LogCaptureFixture) -> None:
    profiler = Profiler(start_profile=False)
    step()
    profiler.analyse()
    assert "analyse() has nothing to analyse: nothing was recorded." in caplog.messages[-1]


EXITING = """
import numpy as np
import mindspore as ms
from mindspore import nn
from stepscope.compat.mindspore import Profiler, profile

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
cell, values = nn.Dense(16, 4), ms.Tensor(np.ones([8, 16], np.float32))
cell(values)
prof = {make}
for _ in range(3):
    cell(values)
{end}
"""


@pytest.mark.parametrize(
    ("make", "end", "code"), [("Profiler()", "", 0), ("profile(profile_memory=True)", "raise ValueError", 1)]
)
def test_an_interpreter_that_exits_without_stop(make: str, end: str, code: int) -> None:
    Path("program.py").write_text(EXITING.format(make=make, end=end))
    done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    assert "profile is stopped at the end of the program." in done.stderr
    (rank,) = recorded()
    assert operators(rank) == 3
