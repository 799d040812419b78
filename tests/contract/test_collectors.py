"""Every collector keeps the protocol: describes itself, may be stopped at any moment, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Collector, Context, Settling, StepMarking
from stepscope.collect.registry import COLLECTORS, make_collectors
from stepscope.read import read_files

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
DataLoader = pytest.importorskip("torch.utils.data").DataLoader


@pytest.fixture(scope="module", autouse=True)
def torch_is_warm() -> None:
    """Have torch open and start once what it keeps for good, so that it is not taken for ours."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        work()


#: Collectors that this environment cannot have: they keep the protocol in tests/frameworks and tests/gpu.
ELSEWHERE = {
    *("mindspore", "minddata", "mindspore_shapes", "parallel", "mindspore_state"),
    *("paddle", "paddle_data", "paddle_state"),
    *("jax", "jax_state", "grain", "grain_dataset"),
    *("nvml", "cupti", "python_stacks"),
}


#: Collectors that write nothing into the window: it may contain nothing of theirs, or the session writes it.
NOTHING_OF_THEIR_OWN = ("garbage", "compilations", "stack_samples")

#: Collectors that stand in for one of the others.
STAND_INS = {"torch_native": ("stepscope.collect.torch.native_collector", "TorchNativeCollector")}


KINDS = {entry.name: (entry.module, entry.kind) for entry in COLLECTORS} | STAND_INS


@pytest.fixture(params=KINDS)
def collector(request: pytest.FixtureRequest) -> Collector:
    module, kind = KINDS[request.param]
    made: Collector = getattr(import_module(module), kind)()
    reason = made.available()
    if reason is not None:
        assert request.param in ELSEWHERE, reason
        pytest.skip(reason)
    return made


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    capture = tmp_path / "capture"
    capture.mkdir()
    journal = Journal(capture / "journal.ssj")
    yield Context(rank=0, capture=capture, options=Options(counters_hz=50), journal=journal)
    journal.close()


def work() -> None:
    for batch in DataLoader(range(4)):
        torch.add(batch, 1)


def close(collector: Collector) -> list[Path]:
    files = collector.stop()
    if isinstance(collector, Settling):
        collector.settle()
    return files


def test_names_are_unique_and_said_once() -> None:
    made = make_collectors()
    assert [collector.name for collector in made] == [entry.name for entry in COLLECTORS]


def test_it_says_that_it_can_and_does_nothing_yet(collector: Collector) -> None:
    assert collector.available() is None
    assert collector.available() is None


def test_one_window(collector: Collector, context: Context) -> None:
    # Given: a window with work in it
    collector.prepare(context)
    collector.start()
    marks = collector.step_marks if isinstance(collector, StepMarking) else None
    if marks is not None:
        assert marks.begin(0) > 0
    work()
    if marks is not None and marks.end is not None:
        marks.end()
    files = close(collector)
    # Then: its files lie in the capture directory, are private, and are readable with the journal
    assert all(path.is_file() and path.parent == context.capture for path in files)
    assert context.journal.close()
    frames = read_files([*files, context.journal.path])
    rows = sum(frames[table].height for table in ("spans", "counters", "metadata"))
    assert rows > 0 or collector.name in NOTHING_OF_THEIR_OWN
    assert frames["losses"].filter(frames["losses"]["severity"] != "info").is_empty()
    assert not context.journal.ledger.rows()


def test_its_description_is_json_at_any_time(collector: Collector, context: Context) -> None:
    for act in (lambda: None, lambda: collector.prepare(context), collector.start, lambda: close(collector)):
        act()
        described = collector.describe()
        assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize("reached", ["made", "prepared"])
def test_stop_before_start(collector: Collector, context: Context, reached: str) -> None:
    if reached == "prepared":
        collector.prepare(context)
    assert collector.stop() == []


def test_the_trainings_exception_passes(collector: Collector, context: Context) -> None:
    error = KeyError("the training's own")
    collector.prepare(context)
    collector.start()
    with pytest.raises(KeyError) as caught:
        raise_from_a_dataset(error)
    close(collector)
    assert caught.value is error


def raise_from_a_dataset(error: Exception) -> None:
    class Broken(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            raise error

    for _ in DataLoader(Broken()):
        pass


def test_results_of_the_training_are_the_same(collector: Collector, context: Context) -> None:
    def train() -> Any:
        torch.manual_seed(0)
        values = torch.zeros(3)
        for batch in DataLoader(torch.randn(8, 3), shuffle=True):
            values = values * 0.5 + batch[0]
        return values

    alone = train()
    collector.prepare(context)
    collector.start()
    watched = train()
    close(collector)
    assert torch.equal(alone, watched)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_ends_well(collector: Collector, context: Context) -> None:
    collector.prepare(context)
    collector.start()
    child = os.fork()
    if child == 0:
        for _ in DataLoader(range(2)):
            pass
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    close(collector)
    assert status == 0


def test_a_hundred_windows_leave_nothing(context: Context) -> None:
    # Given: everything but Kineto, whose window costs too much to open it a hundred times
    for _ in range(100):
        opened = [made for made in make_collectors() if made.name != "torch" and made.available() is None]
        for collector in opened:
            collector.prepare(context)
            collector.start()
        for collector in opened:
            collector.stop()
    assert threading.active_count() < 20
