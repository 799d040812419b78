"""``stepscope.profile`` records what MindSpore does, and changes nothing of it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import nn
from mindspore.profiler import Profiler

import stepscope
from stepscope.cli.main import main
from stepscope.collect.journal.journal import Journal
from stepscope.collect.mindspore import minddata_recording
from stepscope.collect.mindspore.minddata_waits import MindDataCollector
from stepscope.collect.mindspore.mindspore_collector import MindSporeCollector, drop_lines_before
from stepscope.collect.options import Options
from stepscope.collect.protocol import Collector, Context
from stepscope.collect.surgery import mindspore_runtime, verified
from tests.clocks import check_ends
from tests.frameworks.mindspore.conftest import cout_state
from tests.frameworks.mindspore.programs import (
    capture,
    counts,
    facts,
    host_events,
    kernels,
    memory_times,
    totals,
)
from tests.frameworks.torch.programs import manifest, runs
from tests.unit.collect.reading import Read, read_journal

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}

ms.set_device("CPU")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    ms.set_context(mode=MODES[request.param])
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"output": tmp_path / "runs", "analyse": "later"}


class Training:
    """A seeded net, its optimizer and its batches."""

    def __init__(self, batches: int = 6) -> None:
        ms.set_seed(1)
        random = np.random.default_rng(1)
        self.net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 4))
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.1, 0.9)
        values = random.random((8 * batches, 16), dtype=np.float32)
        labels = random.integers(0, 4, 8 * batches).astype(np.int32)
        self.data = ds.NumpySlicesDataset({"x": values, "y": labels}, shuffle=False).batch(8)
        self.step = nn.TrainOneStepCell(nn.WithLossCell(self.net, self.loss), self.optimizer)

    def run(self, after: Callable[[], object] = lambda: None) -> np.ndarray[Any, Any]:
        """Train one epoch and return a parameter."""
        for x, y in self.data.create_tuple_iterator(num_epochs=1):
            self.step(x, y)
            after()
        return self.net.trainable_params()[0].asnumpy()


def only_run(options: dict[str, Any]) -> Path:
    (run,) = runs(options["output"])
    return run


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


def test_a_window_holds_what_mindspore_did(mode: str, options: dict[str, Any]) -> None:
    # Given: a net that is compiled, where it is compiled at all
    training = Training()
    training.run()
    # When: six steps of it are recorded
    with stepscope.profile(**options, profile_memory=True) as profile:
        training.run(profile.step)
    run = only_run(options)
    said = facts(run)
    # Then: the facts are there
    assert (said["format"], said["mode"], said["device_target"], said["rank"]) == (1, mode, "CPU", 0)
    assert said["mindspore"] == ms.__version__
    (_, begin), (_, end) = said["anchors"]
    # and each operator as often as it ran, within the window, with the times that MindSpore adds up itself
    assert counts(run)["MatMul"] >= 6 * 2
    assert counts(run)["ApplyMomentum"] == 6 * 4
    assert all(begin <= kernel.start and kernel.start + kernel.duration <= end for kernel in kernels(run))
    for name, (times, milliseconds) in totals(run).items():
        own = [kernel.duration for kernel in kernels(run) if kernel.name == name]
        assert len(own) == times
        assert sum(own) == pytest.approx(milliseconds * 1e6, rel=0.01, abs=1000)
    # and the host pipeline, and memory
    assert all(begin <= start <= stop <= end for _, start, stop in host_events(run))
    kinds = {name for name, _, _ in host_events(run)}
    assert ("Kernel::KernelLaunch" if mode == "graph" else "PynativeFramework::LaunchTask") in kinds
    assert memory_times(run)
    assert all(begin <= at <= end for at in memory_times(run))


def test_the_files_are_the_users_alone(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    for path in capture(only_run(options)).rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_nothing_reaches_the_programs_output(
    mode: str, options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    assert capfd.readouterr().out == ""


def test_training_has_the_same_result_to_the_last_bit(mode: str, options: dict[str, Any]) -> None:
    alone = Training().run()
    with stepscope.profile(**options, profile_memory=True):
        watched = Training().run()
    assert np.array_equal(alone, watched)


def test_every_wait_for_a_batch_is_a_span_with_the_datasets_facts(options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options) as profile:
        training.run(profile.step)
        for _ in training.data.create_dict_iterator(num_epochs=1, output_numpy=True):
            pass
    waits = [span for span in journal(only_run(options)).spans if span["kind"] == "data"]
    assert len(waits) == 2 * (6 + 1)  # the last one of an epoch finds nothing
    assert {span["name"] for span in waits} == {"Dataset 0 (NumpySlices).__next__"}
    assert waits[0]["args"]["batch_size"] == 8
    assert journal(only_run(options)).metadata["minddata.0"]["operations"][0] == "Batch"


def test_steps_that_nobody_declares_are_found(mode: str, options: dict[str, Any]) -> None:
    training = Training()
    training.run()
    with stepscope.profile(**options):
        stamps = [time.perf_counter_ns()]
        training.run(lambda: stamps.append(time.perf_counter_ns()))
    run = only_run(options)
    found = manifest(run)["steps"]
    assert (found["recorded"], found["optimizers"]) == (6, ["Momentum"])
    assert found["by"] == ("runs of graphs with an optimizer" if mode == "graph" else "calls of optimizers")
    # and they last as long as a stopwatch around the loop says
    check_ends(journal(run).frames["steps"], stamps)


@pytest.mark.parametrize("sink", [True, False], ids=["sink", "no sink"])
def test_steps_of_model_train_are_its_own(mode: str, sink: bool, options: dict[str, Any]) -> None:
    # Given: a model whose callbacks take time, which belongs to the step that they end
    class Slow(ms.Callback):  # type: ignore[misc]
        def on_train_step_end(self, _context: Any) -> None:
            time.sleep(0.02)

    training = Training()
    model = ms.Model(training.net, training.loss, training.optimizer)
    model.train(1, training.data)
    with stepscope.profile(**options):
        model.train(2, training.data, callbacks=[Slow()], dataset_sink_mode=sink)
    run = only_run(options)
    found = manifest(run)["steps"]
    assert (found["by"], found["recorded"], found["optimizers"]) == ("Model.train", 12, ["Momentum"])
    assert journal(run).frames["steps"]["dur"].min() >= 20_000_000
    assert counts(run)["ApplyMomentum"] == 12 * 4
    # and its own marks have not thrown away what the host does between steps
    begins = [start for _, start, _ in host_events(run)]
    assert begins[-1] - begins[0] > 11 * 20_000_000


def test_a_model_without_an_optimizer_of_its_own_has_steps(options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options):
        ms.Model(training.step).train(1, training.data)
    assert manifest(only_run(options))["steps"]["recorded"] == 6


def test_two_windows_hold_their_own(mode: str, options: dict[str, Any]) -> None:
    training = Training()
    profile = stepscope.profile(**options, profile_memory=True)
    for _ in range(2):
        with profile:
            training.run(profile.step)
        assert all(window.wait() for window in profile.recorded)
        training.run()
    first, second = runs(options["output"])
    (_, end), (_, begin) = facts(first)["anchors"][1], facts(second)["anchors"][0]
    assert max(memory_times(first)) <= end < begin <= min(memory_times(second))
    assert max(stop for _, _, stop in host_events(first)) <= end
    assert min(start for _, start, _ in host_events(second)) >= begin
    assert counts(first)["ApplyMomentum"] == counts(second)["ApplyMomentum"] == 24


def test_memory_is_left_out_where_it_is_not_asked_for(options: dict[str, Any]) -> None:
    # Given: a window with memory before, after which MindSpore goes on to write it
    training = Training()
    for switches in ({"profile_memory": True}, {}):
        with stepscope.profile(**options, **switches) as profile:
            training.run(profile.step)
        assert profile.recorded[0].wait()
    first, second = runs(options["output"])
    assert memory_times(first)
    assert not list(capture(second).glob("cpu_ms_memory*"))


def test_a_window_in_which_mindspore_does_nothing(options: dict[str, Any]) -> None:
    with stepscope.profile(**options):
        pass
    run = only_run(options)
    assert not list(capture(run).glob("cpu_*"))
    assert manifest(run)["status"] == "complete"
    assert "failed" not in manifest(run)["collectors"]["mindspore"]


def test_an_exception_of_the_training_passes(mode: str, options: dict[str, Any]) -> None:
    training = Training()
    error = KeyError("the training's own")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught, stepscope.profile(**options):
        training.run(fail)
    assert caught.value is error
    run = only_run(options)
    assert manifest(run)["status"] == "failed at step 1"
    assert counts(run)["ApplyMomentum"] == 4


def test_an_operator_that_failed_on_another_thread_is_the_trainings_own(options: dict[str, Any]) -> None:
    # Given: an operator that fails when it runs, which is after it was called; MindSpore tells of it once
    index = ms.Tensor(np.array([99], np.int64))
    profile = stepscope.profile(**options)
    profile.start()
    ms.ops.gather(ms.Tensor(np.ones((4, 4), np.float32)), index, 0)
    # When: the window waits for it. Then: it is told to the training, and the window is whole
    with pytest.raises(RuntimeError, match="should be in the range"):
        profile.stop()
    assert manifest(only_run(options))["status"] == "complete"


def test_mindspores_own_profiler_keeps_its_files(options: dict[str, Any], tmp_path: Path) -> None:
    # Given: one that records already
    profiler = Profiler(output_path=str(tmp_path / "theirs"))
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    profiler.stop()
    profiler.analyse()
    # Then: it has everything, and ours says why it has nothing
    (files,) = (tmp_path / "theirs").glob("*_ascend_ms/FRAMEWORK/cpu_op_detail_info_0.csv")
    assert "ApplyMomentum" in files.read_text()
    assert "own profiler" in manifest(only_run(options))["collectors"]["mindspore"]["unavailable"]


def test_mindspores_own_profiler_may_start_later(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    with stepscope.profile(**options) as profile:
        training.run(profile.step)
        profiler = Profiler(output_path=str(tmp_path / "theirs"))
        training.run(profile.step)
        profiler.stop()
        profiler.analyse()
    run = only_run(options)
    assert counts(run)["ApplyMomentum"] == 24
    assert manifest(run)["collectors"]["mindspore"]["ended_early"]
    # and what was not recorded is counted, not shown as idle
    tables = stepscope.open(run).ranks[0].tables
    losses = {row["what"]: row["count"] for row in tables["losses"].collect().to_dicts()}
    recorded = tables["steps"].collect().height
    assert losses["recording_ended_early"] == 1
    assert losses["steps_not_recorded"] == manifest(run)["steps"]["recorded"] - recorded > 0
    (files,) = (tmp_path / "theirs").glob("*_ascend_ms/FRAMEWORK/cpu_op_execute_timestamp_0.txt")
    assert "ApplyMomentum" in files.read_text()


def test_mindspores_own_profiler_may_start_while_ours_is_prepared(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training(batches=8)
    profiler = None
    with stepscope.profile(**options, schedule=stepscope.schedule(wait=1, warmup=2, active=4, repeat=1)) as profile:
        for number, (x, y) in enumerate(training.data.create_tuple_iterator(num_epochs=1)):
            if number == 2:  # ours is prepared
                profiler = Profiler(output_path=str(tmp_path / "theirs"))
            elif number == 5 and profiler is not None:
                profiler.stop()
                profiler.analyse()
            training.step(x, y)
            profile.step()
    # Then: it has what it recorded
    (files,) = (tmp_path / "theirs").glob("*_ascend_ms/FRAMEWORK/cpu_op_execute_timestamp_0.txt")
    assert "ApplyMomentum" in files.read_text()
    # and ours says that it has nothing: not that the program did nothing
    run = only_run(options)
    assert "own profiler" in manifest(run)["collectors"]["mindspore"]["failed"]
    rank = stepscope.open(run).ranks[0]
    assert "collector_failed" in rank.tables["losses"].collect()["what"].to_list()
    shown = rank.results["step_trace_time"]
    assert shown.height == 4
    assert shown["Idle"].null_count() == shown["Computing"].null_count() == 4


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    directory = tmp_path / "capture"
    directory.mkdir()
    made = Journal(directory / "journal.ssj")
    yield Context(rank=0, capture=directory, options=Options(data_process=True), journal=made)
    made.close()


def test_data_pipelines_made_in_the_window_are_in_it(context: Context) -> None:
    interval = ds.config.get_monitor_sampling_interval()
    collector = MindSporeCollector()
    collector.prepare(context)
    collector.start()
    iterator = Training(batches=60).data.create_tuple_iterator(num_epochs=1)
    for _ in iterator:
        time.sleep(0.005)
    (directory,) = collector.stop()
    del iterator
    pipeline = json.loads((directory / "minddata" / "pipeline_profiling_0.json").read_text())
    assert {operation["op_type"] for operation in pipeline["op_info"]} >= {"BatchOp"}
    lines = (directory / "minddata" / "dataset_iterator_profiling_0.txt").read_text().splitlines()
    batches = [line.split() for line in lines if line.startswith("0 2 ")]
    assert len(batches) >= 60
    # and their times lie between the anchors, on the monotonic clock
    said = json.loads((directory / "stepscope.json").read_text())
    (begin, _), (end, _) = said["anchors"]
    assert all(begin <= int(batch[4]) * 1_000_000 + 1_000_000 and int(batch[4]) * 1_000_000 <= end for batch in batches)
    assert pipeline["sampling_interval"] == said["sampling_interval_ms"] == minddata_recording.SAMPLING_INTERVAL_MS
    assert ds.config.get_monitor_sampling_interval() == interval


def test_a_pipeline_from_before_the_window_is_said_to_be_missing(context: Context) -> None:
    iterator = Training().data.create_tuple_iterator(num_epochs=1)
    next(iterator)
    collector = MindSporeCollector()
    collector.prepare(context)
    collector.start()
    next(iterator)
    (directory,) = collector.stop()
    assert not (directory / "minddata").exists()
    assert "before the pipeline" in str(collector.describe()["data_pipelines"])
    # and pipelines go on, also those that are made afterwards (MindSpore crashes on some orders of calls)
    assert len(list(Training().data.create_tuple_iterator(num_epochs=1))) == 6


def test_a_runtime_profiler_that_cannot_be_ended_is_not_begun(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a MindSpore whose machine code is not as expected
    monkeypatch.setattr(mindspore_runtime, "CODE_BYTES", 4)
    with stepscope.profile(**options) as profile:
        Training().run(profile.step)
    run = only_run(options)
    assert "could not be switched off" in manifest(run)["collectors"]["mindspore"]["host_pipeline"]
    assert not list(capture(run).glob("rank_*"))
    assert counts(run)["ApplyMomentum"] == 24


def test_on_a_build_that_was_not_verified_the_rest_is_recorded(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Given: the table without the build of this MindSpore
    verified.require("libmindspore_profiler.so")
    with monkeypatch.context() as patch:
        patch.setattr(verified, "BUILDS", ())
        with stepscope.profile(**options) as profile:
            Training().run(profile.step)
    run = only_run(options)
    said = str(manifest(run)["collectors"]["mindspore"]["host_pipeline"])
    sha256 = hashlib.sha256(_runtime_library().read_bytes()).hexdigest()
    for part in ("not recorded", ms.__version__, platform.machine(), f"sha256:{sha256}", "README.md"):
        assert part in said
    assert not list(capture(run).glob("rank_*"))
    assert counts(run)["ApplyMomentum"] == 24
    # and `check` says so
    capfd.readouterr()
    assert main(["check", str(run)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert f"operators; host_pipeline: {said}" in shown
    assert "1 × build_not_verified" in shown


def test_a_library_with_one_other_byte_was_not_verified(tmp_path: Path) -> None:
    content = bytearray(_runtime_library().read_bytes())
    content[-1] ^= 1
    changed = tmp_path / "libmindspore_profiler.so"
    changed.write_bytes(content)
    assert verified.identify(_runtime_library()) in {build[3:1:-1] for build in verified.BUILDS}
    assert verified.identify(changed) not in {build[3:1:-1] for build in verified.BUILDS}


def _runtime_library() -> Path:
    return Path(ms.__file__).parent / "lib" / "libmindspore_profiler.so"


@pytest.mark.parametrize(("state", "mask"), [(0, 0), (0, 1), (0, 7), (4, 0), (1, 0)])
def test_standard_output_of_cpp_is_as_before(state: int, mask: int) -> None:
    # Given: std::cout as a program may have left it: state and exceptions, where 1 is badbit and 4 failbit
    library = ctypes.CDLL("libstdc++.so.6")
    address = ctypes.c_void_p(mindspore_runtime.ios_of_cout(library))
    clear = library["_ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate"]
    throw_at = library["_ZNSt9basic_iosIcSt11char_traitsIcEE10exceptionsESt12_Ios_Iostate"]
    clear(address, state)
    throw_at(address, mask)
    try:
        with mindspore_runtime.cout_failing():
            assert cout_state()[0] != 0
        assert cout_state() == (state, mask)
        with pytest.raises(ZeroDivisionError), mindspore_runtime.cout_failing():
            1 / 0  # noqa: B018
        assert cout_state() == (state, mask)
    finally:
        throw_at(address, 0)
        clear(address, 0)


@pytest.mark.parametrize("looked", [False, True])
def test_the_runtime_profiler_looks_at_the_environment_as_before(looked: bool, tmp_path: Path) -> None:
    # MindSpore looks once. If it did so only for a window, it must look again for the program, which may ask later
    flags = mindspore_runtime.RuntimeFlags()
    before, flags.initialised = flags.initialised, looked
    profiler = mindspore_runtime.RuntimeProfiler()
    profiler.start(tmp_path)
    assert (flags.enabled, flags.initialised) == (True, True)
    profiler.stop()
    assert (flags.enabled, flags.initialised) == (False, looked)
    flags.initialised = before


def test_a_start_that_fails_leaves_the_runtime_profiler_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = mindspore_runtime.RuntimeFlags()
    before, flags.initialised = flags.initialised, False
    monkeypatch.setattr(mindspore_runtime, "VARIABLE", "MS_ENABLE_NOTHING")
    with pytest.raises(RuntimeError, match="MS_ENABLE_NOTHING=1 does not switch"):
        mindspore_runtime.RuntimeProfiler().start(tmp_path)
    assert (flags.enabled, flags.initialised) == (False, False)
    assert "MS_ENABLE_NOTHING" not in os.environ
    flags.initialised = before


def test_without_the_host_pipeline_operators_are_all_there_is(options: dict[str, Any]) -> None:
    with stepscope.profile(host_pipeline=False, **options) as profile:
        Training().run(profile.step)
    run = only_run(options)
    assert manifest(run)["collectors"]["mindspore"]["host_pipeline"] is False
    assert not list(capture(run).glob("rank_*"))
    assert counts(run)["ApplyMomentum"] == 24


@pytest.fixture(params=[MindSporeCollector, MindDataCollector])
def collector(request: pytest.FixtureRequest) -> Collector:
    made: Collector = request.param()
    return made


@pytest.mark.parametrize("reached", ["made", "prepared"])
def test_stop_before_start(collector: Collector, context: Context, reached: str) -> None:
    assert collector.available() is None
    if reached == "prepared":
        collector.prepare(context)
    assert collector.stop() == []


def test_its_description_is_json_at_any_time(collector: Collector, context: Context) -> None:
    for act in (lambda: None, lambda: collector.prepare(context), collector.start, collector.stop):
        act()
        described = collector.describe()
        assert json.loads(json.dumps(described)) == described


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_ends_well_and_writes_nothing(collector: Collector, context: Context) -> None:
    collector.prepare(context)
    collector.start()
    child = os.fork()
    if child == 0:
        collector.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not list(context.capture.glob("mindspore/cpu_*"))
    Training(batches=2).run()
    for directory in collector.stop():
        assert (directory / "cpu_op_execute_timestamp_0.txt").stat().st_size > 0


def test_thirty_windows_leave_nothing(options: dict[str, Any]) -> None:
    training = Training(batches=1)
    for _ in range(30):
        with stepscope.profile(**options):
            training.run()
    found = runs(options["output"])
    assert [manifest(run)["steps"]["recorded"] for run in found] == [1] * 30
    assert {counts(run)["ApplyMomentum"] for run in found} == {4}
    assert all(host_events(run) for run in found)


@pytest.mark.parametrize(("since", "kept"), [(0, 5), (10, 5), (11, 4), (30, 3), (50, 1), (51, 0)])
def test_memory_records_are_cut_at_a_time(tmp_path: Path, since: int, kept: int) -> None:
    path = tmp_path / "record.txt"
    lines = [f"{at},1,2,3\n" for at in (10, 20, 30, 40, 50)]
    path.write_text("Timestamp(ns),Total Allocated(Byte)\n" + "".join(lines))
    drop_lines_before(path, since)
    assert path.read_text() == "Timestamp(ns),Total Allocated(Byte)\n" + "".join(lines[5 - kept :])
