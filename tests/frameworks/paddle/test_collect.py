"""``stepscope.profile`` records what Paddle does, and changes nothing of it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core
from paddle.profiler import Profiler, RecordEvent
from paddle.static import InputSpec

import stepscope
from stepscope.collect.surgery.paddle_tracer import is_whole
from stepscope.read import read_files
from stepscope.trace.tables import columns_of
from tests.clocks import check_ends
from tests.frameworks.paddle.programs import (
    BACKWARD,
    DATA,
    FORWARD,
    OPERATOR,
    OPTIMIZATION,
    USER,
    capture,
    counts,
    events,
    memory_times,
)
from tests.frameworks.torch.programs import manifest, runs
from tests.unit.collect.reading import Read, read_journal

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.filterwarnings("ignore::UserWarning:paddle"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"output": tmp_path / "runs", "analyse": "later"}


class Points(paddle.io.Dataset):
    def __init__(self, batches: int, on_item: Callable[[], object]) -> None:
        self.size = 8 * batches
        self.on_item = on_item

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.on_item()
        return np.full(16, index / self.size, "float32"), np.array(index % 4)


class Training:
    """A seeded net, its optimizer and its batches."""

    def __init__(self, batches: int = 6, workers: int = 0, on_item: Callable[[], object] = lambda: None) -> None:
        paddle.seed(1)
        self.net = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 4))
        self.loss = paddle.nn.CrossEntropyLoss()
        self.optimizer = paddle.optimizer.Momentum(0.1, parameters=self.net.parameters())
        self.data = paddle.io.DataLoader(Points(batches, on_item), batch_size=8, num_workers=workers)

    def step(self, x: Any, y: Any) -> None:
        self.loss(self.net(x), y).backward()
        self.optimizer.step()
        self.optimizer.clear_grad()

    def run(self, after: Callable[[], object] = lambda: None) -> Any:
        """Train one epoch and return a parameter."""
        for x, y in self.data:
            self.step(x, y)
            after()
        return self.net.parameters()[0].numpy()


class Program:
    """The same as a static program."""

    def __init__(self) -> None:
        paddle.enable_static()
        paddle.seed(1)
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, self.startup):
            x = paddle.static.data("x", [None, 16], "float32")
            y = paddle.static.data("y", [None, 1], "int64")
            net = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 4))
            self.output = net(x)
            self.loss = paddle.nn.functional.cross_entropy(self.output, y).mean()
            self.optimizer = paddle.optimizer.Momentum(0.1)
            self.optimizer.minimize(self.loss)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.feed = {"x": np.ones((8, 16), "float32"), "y": np.zeros((8, 1), "int64")}
        self.executor.run(self.startup)

    def step(self) -> Any:
        return self.executor.run(self.main, feed=self.feed, fetch_list=[self.loss])[0]


@pytest.fixture
def program() -> Iterator[Program]:
    try:
        yield Program()
    finally:
        paddle.disable_static()


def only_run(options: dict[str, Any]) -> Path:
    (run,) = runs(options["output"])
    return run


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


def theirs(train: Callable[[], object]) -> Counter[str]:
    """Count the operators of a training with Paddle's own profiler."""
    found: Counter[str] = Counter()

    def count(profiler: Profiler) -> None:
        todo = list(profiler.profiler_result.get_data().values())
        while todo:
            node = todo.pop()
            todo += node.children_node
            if node.type == core.TracerEventType.Operator and node.name != "root node":
                found[node.name] += 1

    with Profiler(on_trace_ready=count):
        train()
    return found


def test_a_window_holds_what_paddle_did(options: dict[str, Any]) -> None:
    training = Training()
    begin = time.time_ns()
    with stepscope.profile(**options, profile_memory=True) as profile:
        training.run(profile.step)
    end = time.time_ns()
    run = only_run(options)
    # Then: each operator as often as it ran, within the window
    assert counts(run)["matmul dygraph"] == 6 * 2
    assert counts(run)["momentum_ dygraph"] == 6 * 4
    assert all(begin <= event.start <= event.end <= end for event in events(run))
    # and layers, backward, the optimizer's steps, and memory
    assert counts(run, FORWARD) == {"Sequential": 6, "Linear": 12, "ReLU": 6, "CrossEntropyLoss": 6}
    assert counts(run, BACKWARD) == {"Gradient Backward": 6}
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 6}
    assert memory_times(run)
    assert all(begin <= at <= end for at in memory_times(run))
    assert manifest(run)["collectors"]["paddle"]["mode"] == "eager"


def test_operators_are_those_that_paddles_own_profiler_counts(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    ours = counts(only_run(options))
    own = theirs(lambda: Training().run())
    assert len(own) > 10
    assert ours == own


def test_a_static_program_is_counted_as_paddle_does(program: Program, options: dict[str, Any]) -> None:
    program.step()

    def train() -> None:
        for _ in range(5):
            program.step()

    with stepscope.profile(**options):
        train()
    run = only_run(options)
    assert counts(run)["pd_op.momentum_"] == 5 * 4
    assert counts(run) == theirs(train)
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"], found["recorded"]) == (
        "runs of programs with an optimizer",
        ["momentum"],
        5,
    )
    assert manifest(run)["collectors"]["paddle"]["mode"] == "static"


def test_programs_without_an_optimizer_are_no_steps(program: Program, options: dict[str, Any]) -> None:
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x = paddle.static.data("x", [None, 16], "float32")
        other, mean = paddle.static.default_main_program(), x.mean()
        with stepscope.profile(**options):
            program.executor.run(program.startup)
            for _ in range(3):
                program.step()
                program.executor.run(other, feed={"x": program.feed["x"]}, fetch_list=[mean])
    assert manifest(only_run(options))["steps"]["recorded"] == 3


def test_the_files_are_the_users_alone(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    assert capture(only_run(options)).stat().st_mode & 0o777 == 0o600


def test_nothing_reaches_the_programs_output(options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(**options, record_shapes=True, profile_memory=True, quiet=True) as profile:
        Training().run(profile.step)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [0, 2])
def test_training_has_the_same_result_to_the_last_bit(workers: int, options: dict[str, Any]) -> None:
    alone = Training(workers=workers).run()
    with stepscope.profile(**options, profile_memory=True):
        watched = Training(workers=workers).run()
    assert np.array_equal(alone, watched)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_wait_for_a_batch_is_a_span_with_the_loaders_facts(workers: int, options: dict[str, Any]) -> None:
    training = Training(workers=workers, on_item=lambda: time.sleep(0.001))
    asked, answered = [], []
    with stepscope.profile(**options) as profile:
        made = time.time_ns()
        batches = iter(training.data)
        with contextlib.suppress(StopIteration):
            while True:
                asked.append(time.time_ns())
                x, y = next(batches)
                answered.append(time.time_ns())
                training.step(x, y)
                profile.step()
    run = only_run(options)
    waits = [span for span in journal(run).spans if span["kind"] == "data"]
    assert len(waits) == 6 + 1  # the last one finds nothing
    assert {span["name"] for span in waits} == {"DataLoader 0 (Points).__next__"}
    assert (waits[0]["args"]["workers"], waits[0]["args"]["batch_size"]) == (workers, 8)
    # and each lies in the program's own wait, and is nearly as long
    own = list(zip(waits, asked, answered, strict=False))
    assert all(begin - 1e6 <= wait["ts"] and wait["ts"] + wait["dur"] <= end + 1e6 for wait, begin, end in own)
    assert median(end - begin - wait["dur"] for wait, begin, end in own) < 1e6
    # and no batch is there before its eight items; Paddle begins to read them when it makes the iterator
    assert waits[0]["ts"] + waits[0]["dur"] - made >= 8e6
    # and Paddle's own mark of the same wait is not there a second time
    assert counts(run, DATA) == {}


def test_the_batches_that_workers_had_ready_are_counted(options: dict[str, Any]) -> None:
    # Given: workers that keep three batches each ahead of steps that take longer
    training = Training(workers=2)
    with stepscope.profile(**options) as profile:
        for x, y in training.data:
            training.step(x, y)
            time.sleep(0.05)
            profile.step()
    (rank,) = stepscope.open(only_run(options)).ranks
    ready = columns_of(rank.tables, "run_steps", "batches_ready")["batches_ready"].drop_nulls().to_list()
    assert 0 < max(ready) <= 6


def test_workers_record_nothing(options: dict[str, Any], tmp_path: Path) -> None:
    # Given: workers that compute with Paddle, and say whether it records there
    def compute() -> None:
        paddle.ones([4]).sum()
        (tmp_path / f"{os.getpid()}").write_text(str(paddle.profiler.utils._is_profiler_used))

    with stepscope.profile(**options) as profile:
        Training(workers=2, on_item=compute).run(profile.step)
    said = [path.read_text() for path in tmp_path.iterdir() if path.name.isdigit()]
    assert said == ["False", "False"]
    assert {event.thread for event in events(only_run(options)) if event.type == OPERATOR} == {os.getpid()}


def test_the_programs_own_ranges_are_there(options: dict[str, Any]) -> None:
    with stepscope.profile(**options), RecordEvent("mine"):
        paddle.ones([4])
    assert counts(only_run(options), USER) == {"mine": 1}


def test_backward_is_seen_whatever_calls_it(options: dict[str, Any]) -> None:
    x = paddle.ones([4])
    x.stop_gradient = False
    with stepscope.profile(**options):
        (x * x).sum().backward()
        paddle.autograd.backward([(x * x).sum()])
        paddle.grad((x * x).sum(), x)
    assert counts(only_run(options), BACKWARD) == {"Gradient Backward": 3}


def test_steps_that_nobody_declares_are_found(options: dict[str, Any]) -> None:
    training = Training()
    training.run()
    with stepscope.profile(**options):
        stamps = [time.perf_counter_ns()]
        training.run(lambda: (stamps.append(time.perf_counter_ns()), time.sleep(0.005)))
    run = only_run(options)
    found = manifest(run)["steps"]
    assert (found["recorded"], found["optimizers"], found["by"]) == (6, ["Momentum"], "calls of optimizers")
    # and they last as long as a stopwatch in the loop says
    check_ends(journal(run).frames["steps"], stamps)


class Own(paddle.optimizer.Optimizer):
    """An optimizer of the program's, with a step of its own that calls no other."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(0.1, parameters)

    @paddle.no_grad()
    def step(self) -> None:
        for parameter in self._parameter_list:
            parameter.set_value(parameter - 0.1 * parameter.grad)


def _scaled(training: Training, loss: Any) -> None:
    scaler = paddle.amp.GradScaler(enable=True)
    scaler.scale(loss).backward()
    scaler.step(training.optimizer)
    scaler.update()


def _minimized(training: Training, loss: Any) -> None:
    loss.backward()
    training.optimizer.minimize(loss)


def _accumulated(training: Training, loss: Any) -> None:
    for _ in range(3):
        (loss / 3).backward(retain_graph=True)
    training.optimizer.step()


def _with_own_class(training: Training, loss: Any) -> None:
    training.optimizer = Own(training.net.parameters())
    loss.backward()
    training.optimizer.step()


@pytest.mark.parametrize("way", [_scaled, _minimized, _accumulated, _with_own_class], ids=lambda way: way.__name__)
def test_ways_to_make_a_step(way: Callable[[Training, Any], None], options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options):
        for x, y in training.data:
            way(training, training.loss(training.net(x), y))
            training.optimizer.clear_grad()
    run = only_run(options)
    # With an optimizer a step, as in `_with_own_class`, only the last one is known to end steps.
    assert manifest(run)["steps"]["recorded"] == (1 if way is _with_own_class else 6)
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 6}


def test_of_two_optimizers_the_one_that_steps_less_ends_the_step(options: dict[str, Any]) -> None:
    critic, generator = Training(), Training()
    x, y = paddle.ones([8, 16]), paddle.zeros([8, 1], "int64")
    with stepscope.profile(**options):
        for _ in range(4):
            for _ in range(3):
                critic.step(x, y)
            generator.step(x, y)
    found = manifest(only_run(options))["steps"]
    assert (found["recorded"], found["rule"]) == (4, "the optimizer that steps least often ends a training step")


@pytest.mark.parametrize("static", [False, True], ids=["eager", "static"])
def test_steps_of_model_fit_are_its_own(static: bool, options: dict[str, Any]) -> None:
    # Given: a model that steps in every second batch, and whose callbacks take time, which belongs to the batch
    if static:
        paddle.enable_static()
    try:
        net = paddle.nn.Sequential(paddle.nn.Linear(16, 4))
        shapes = [InputSpec([None, 16], "float32", "x")], [InputSpec([None, 1], "int64", "y")]
        model = paddle.Model(net, *shapes)
        model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()), lambda output, label: output.mean())

        class Slow(paddle.callbacks.Callback):
            def on_train_batch_end(self, step: int, logs: Any = None) -> None:
                time.sleep(0.01)

        data = Points(6, lambda: None)
        accumulate = {} if static else {"accumulate_grad_batches": 2}
        with stepscope.profile(**options):
            model.fit(data, data, batch_size=8, verbose=0, callbacks=[Slow()], **accumulate)
    finally:
        paddle.disable_static()
    found = manifest(only_run(options))["steps"]
    assert (found["by"], found["recorded"], found["optimizers"]) == ("Model.fit", 6, ["SGD"])
    assert journal(only_run(options)).frames["steps"]["dur"].min() >= 10e6


def test_two_windows_hold_their_own(options: dict[str, Any]) -> None:
    training = Training()
    training.run()
    profile = stepscope.profile(**options, profile_memory=True)
    for _ in range(2):
        with profile:
            training.run(profile.step)
        training.run()
    assert all(window.wait() for window in profile.recorded)
    first, second = runs(options["output"])
    assert counts(first) == counts(second)
    assert max(event.end for event in events(first)) < min(event.start for event in events(second))
    assert max(memory_times(first)) < min(memory_times(second))


def test_a_window_in_which_paddle_does_nothing(options: dict[str, Any]) -> None:
    with stepscope.profile(**options):
        pass
    run = only_run(options)
    assert events(run) == []
    assert "failed" not in manifest(run)["collectors"]["paddle"]
    assert read_files([capture(run)])["spans"].height == 0


def test_an_exception_of_the_training_passes(options: dict[str, Any]) -> None:
    training = Training()
    error = KeyError("the training's own")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught, stepscope.profile(**options):
        training.run(fail)
    assert caught.value is error
    run = only_run(options)
    assert manifest(run)["status"] == "failed at step 1"
    assert counts(run)["momentum_ dygraph"] == 4


def test_a_failing_operator_is_the_trainings_own(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(?i)dimension"), stepscope.profile(**options):
        paddle.matmul(paddle.ones([2, 3]), paddle.ones([2, 3]))
    assert manifest(only_run(options))["status"] == "failed at step 0"


def test_paddles_own_profiler_keeps_its_recording(options: dict[str, Any]) -> None:
    # Given: one that records already
    def train() -> None:
        with stepscope.profile(**options) as profile:
            Training().run(profile.step)

    assert theirs(train)["momentum_ dygraph"] == 24
    run = only_run(options)
    assert "room for one" in manifest(run)["collectors"]["paddle"]["unavailable"]
    gc.collect()


def test_paddles_own_profiler_may_start_later(options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options) as profile:
        training.run(profile.step)
        assert theirs(lambda: training.run(profile.step))["momentum_ dygraph"] == 24
    run = only_run(options)
    assert counts(run)["momentum_ dygraph"] == 24
    assert manifest(run)["collectors"]["paddle"]["ended_early"]
    # and what was not recorded is counted, not shown as idle
    tables = stepscope.open(run).ranks[0].tables
    losses = {row["what"]: row["count"] for row in tables["losses"].collect().to_dicts()}
    recorded = tables["steps"].collect().height
    assert losses["recording_ended_early"] == 1
    assert losses["steps_not_recorded"] == manifest(run)["steps"]["recorded"] - recorded > 0


def test_paddles_own_stopwatch_runs_beside(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile, Profiler(timer_only=True) as stopwatch:
        Training().run(lambda: (profile.step(), stopwatch.step()))
        assert "batch_cost" in stopwatch.step_info()
    run = only_run(options)
    assert counts(run)["momentum_ dygraph"] == 24
    assert "ended_early" not in manifest(run)["collectors"]["paddle"]


@pytest.mark.slow
def test_two_threads_train_while_windows_open_and_close(options: dict[str, Any]) -> None:
    # Given: a thread that never stops training; Paddle's own profiler would crash the process here
    done = threading.Event()
    steps = 0

    def train() -> None:
        nonlocal steps
        training = Training()
        x, y = paddle.ones([8, 16]), paddle.zeros([8, 1], "int64")
        while not done.is_set():
            training.step(x, y)
            steps += 1

    other = threading.Thread(target=train)
    other.start()
    training = Training()
    try:
        for _ in range(20):
            with stepscope.profile(**options) as profile:
                before = steps
                training.run(profile.step)
                while steps < before + 2 and other.is_alive():  # one whole step of the other thread at least
                    time.sleep(0.001)
    finally:
        done.set()
        other.join()
    assert steps > 100
    for run in runs(options["output"]):
        assert counts(run)["momentum_ dygraph"] >= 24
        assert len({event.thread for event in events(run) if event.type == OPERATOR}) == 2


@pytest.mark.slow
def test_a_thousand_windows_leave_nothing(options: dict[str, Any]) -> None:
    training = Training()
    x, y = paddle.ones([8, 16]), paddle.zeros([8, 1], "int64")

    def cycle() -> None:
        profile = stepscope.profile(**options)
        with profile:
            training.step(x, y)
        assert profile.recorded[0].wait()

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    # Names of files pass through Python's table of names, which takes 3 MB more once in some ten thousand: it has them.
    names = [sys.intern(f"name {number}") for number in range(200_000)]
    for _ in range(300):
        cycle()
    before, files = resident(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(1000):
        cycle()
    assert (resident() - before) / 1000 < 1024
    assert len(names) == 200_000
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_a_cut_file_is_recognised(options: dict[str, Any], tmp_path: Path) -> None:
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    content = capture(only_run(options)).read_bytes()
    path = tmp_path / "cut.pb"
    for size, whole in ((len(content), True), (len(content) - 1, False), (len(content) // 2, False), (1, False)):
        path.write_bytes(content[:size])
        assert is_whole(path) is whole
