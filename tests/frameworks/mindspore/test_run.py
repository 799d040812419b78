"""``stepscope run`` on programs that train with MindSpore: they run as under ``python``; some steps are recorded."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from tests.clocks import check_ends
from tests.frameworks.mindspore.programs import STEPS, TRAINING, capture, counts, facts, host_events
from tests.frameworks.torch.programs import manifest, python, runs, script, stepscope_run
from tests.unit.collect.reading import Read, read_journal

#: Writes when each pass through the loop ended to a file.
STOPWATCH = "import json; json.dump(stamps, open('stamps.json', 'w'))\n"


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


#: A program that updates its parameters itself.
WRITTEN_UPDATE = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops
ms.set_device("CPU")
net = nn.Dense(8, 4)
gradient = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, net.trainable_params())
x = ms.Tensor(np.ones((4, 8), np.float32))
for _ in range(40):
    loss, gradients = gradient(x)
    for parameter, change in zip(net.trainable_params(), gradients):
        ops.assign(parameter, parameter - 0.1 * change)
print("trained")
"""


def test_a_program_without_an_optimizer_of_mindspore(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--skip", "3", script(tmp_path, WRITTEN_UPDATE), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(output)
    # Then each computation of gradients ends a step, from the twenty-first on
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"]) == ("gradients computed in PyNative mode", [])
    assert "no optimizer of mindspore" in found["rule"]
    assert len(stepscope.open(run).tables["run_steps"].collect()) in (19, 20)


@pytest.mark.parametrize(
    ("way", "arguments", "by"),
    [
        ("cell", ["pynative"], "calls of optimizers"),
        ("functions", ["graph"], "calls of optimizers"),
        ("jit", ["pynative"], "runs of graphs with an optimizer"),
        ("jit", ["pynative", "bytecode"], "runs of graphs with an optimizer"),
        ("method", ["graph"], "runs of graphs with an optimizer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_steps_are_found_in_a_loop(tmp_path: Path, output: Path, way: str, arguments: list[str], by: str) -> None:
    path = script(tmp_path, TRAINING + STEPS[way] + STOPWATCH)
    done = stepscope_run(output, path, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
    assert len(done.stdout.splitlines()) == 1
    (run,) = runs(output)
    # Then steps 5 to 9 are there, found without a word of the script
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"], found["recorded"]) == (by, ["Momentum"], 5)
    steps = journal(run).frames["steps"]
    assert steps["number"].to_list() == [5, 6, 7, 8, 9]
    # and last as long as a stopwatch in the loop says
    stamps = json.loads((tmp_path / "stamps.json").read_text())
    check_ends(steps, stamps[4:10], within=3e6)
    # and their operators, all of them and no others
    assert counts(run)["ApplyMomentum"] == 5 * 4
    assert host_events(run)
    waits = [span for span in journal(run).spans if span["kind"] == "data"]
    assert len(waits) == 5
    # each in the step that asked for it, although MindSpore runs them when the call has returned
    check_each_step_is_whole(run)


def check_each_step_is_whole(run: Path) -> None:
    """Every step has the same operators, and no operator lies between steps."""
    spans = stepscope.open(run).tables["spans"].collect().filter(pl.col("kind") == "operator")
    named = spans.select("step", pl.col("name").cast(pl.String)).group_by("step").agg("name")
    found = {step: Counter(names) for step, names in named.iter_rows()}
    assert set(found) == {5, 6, 7, 8, 9}
    assert all(names == found[5] for names in found.values())


#: A training whose compiled step updates its parameters itself, without an optimizer.
OWN_UPDATE = """
import numpy as np, mindspore as ms
from mindspore import Parameter, Tensor, ops

weights = Parameter(Tensor(np.ones((8, 3), np.float32)), name="weights")

def forward(x):
    return ops.square(ops.matmul(x, weights)).mean()

gradient = ms.value_and_grad(forward, None, [weights])

@ms.jit
def train_step(x):
    loss, gradients = gradient(x)
    ops.assign_sub(weights, 0.1 * gradients[0])
    return loss

x = Tensor(np.ones((4, 8), np.float32))
for _ in range(24):
    train_step(x).asnumpy()
"""


def test_a_compiled_step_without_an_optimizer_is_a_step(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--skip", "12", "--active", "3", script(tmp_path, OWN_UPDATE))
    assert done.returncode == 0, done.stderr
    assert manifest(runs(output)[0])["steps"]["by"] == "runs of a graph"


@pytest.mark.parametrize("arguments", [["graph", "sink"], ["pynative", "no"]], ids="-".join)
def test_a_model_is_recorded_and_its_output_is_its_own(tmp_path: Path, output: Path, arguments: list[str]) -> None:
    callback = "class Losses(ms.LossMonitor): pass\n"
    text = TRAINING + callback + STEPS["model"].replace("data,", "data, callbacks=[Losses(1)],")
    path = script(tmp_path, text)
    plain, ours = python(path, *arguments), stepscope_run(output, path, *arguments)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout), ours.stderr
    assert plain.stdout.count("loss is") == 12
    (run,) = runs(output)
    assert journal(run).frames["steps"]["number"].to_list() == [5, 6, 7, 8, 9]
    assert manifest(run)["steps"]["by"] == "Model.train"
    assert counts(run)["ApplyMomentum"] == 5 * 4
    assert manifest(run)["losses"] == {}
    check_each_step_is_whole(run)


def test_the_first_steps_and_data_pipelines(tmp_path: Path, output: Path) -> None:
    # Given: a recording that begins before the program has said on which device and in which mode it trains
    path = script(tmp_path, TRAINING + STEPS["cell"])
    done = stepscope_run(output, "--steps", "0:3", "--data", path, "graph")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert journal(run).frames["steps"]["number"].to_list() == [0, 1, 2, 3]
    assert facts(run)["mode"] == "graph"
    assert counts(run)["ApplyMomentum"] == 4 * 4
    assert (capture(run) / "minddata" / "pipeline_profiling_0.json").is_file()
    assert facts(run)["pipeline_begin"] > 0


def test_the_pipelines_of_a_later_window(tmp_path: Path, output: Path) -> None:
    # Given: steps in the middle of an epoch, whose pipeline was made long before
    done = stepscope_run(output, "--data", script(tmp_path, TRAINING + STEPS["model"]), "pynative", "no")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert (capture(run) / "minddata" / "pipeline_profiling_0.json").is_file()


#: A program with MindSpore's recorder of data pipelines in its own hands.
OWN_PIPELINES = """
from pathlib import Path
import mindspore._c_dataengine as engine
import mindspore.dataset as ds

def recorded(directory):
    recorder = engine.GlobalContext.profiling_manager()
    recorder.init()
    recorder.start()
    data = ds.GeneratorDataset(list(range(64)), ["x"], shuffle=False).batch(8)
    list(data.create_dict_iterator(num_epochs=1))
    recorder.stop()
    Path(directory).mkdir()
    recorder.save(directory)
    return sorted(path.name.split("_")[0] for path in Path(directory).iterdir())

before = ds.config.get_monitor_sampling_interval()
print(recorded("first") == recorded("second"), ds.config.get_monitor_sampling_interval())
"""


def test_a_program_that_records_its_pipelines_itself_keeps_them(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, OWN_PIPELINES)
    done = stepscope_run(output, "--steps", "all", "--data", "--parallel-strategy", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True 1000\n"
    assert "auto_parallel_search_mode" not in done.stderr
    assert (tmp_path / "first" / "pipeline_profiling_0.json").is_file()
    (run,) = runs(output)
    assert "the program records its data pipelines itself" in manifest(run)["collectors"]["mindspore"]["data_pipelines"]
    assert not (capture(run) / "minddata").exists()


def test_an_operator_that_failed_on_another_thread_is_met_where_the_step_ends(tmp_path: Path, output: Path) -> None:
    # Given: the last step of the window, with an operator that fails when it runs
    fail = "    if len(stamps) == 9: ops.gather(ms.Tensor(np.ones((4, 4), np.float32)), ms.Tensor(np.array([99])), 0)\n"
    text = TRAINING + STEPS["functions"].replace("    optimizer(", f"{fail}    optimizer(")
    done = stepscope_run(output, script(tmp_path, text), "pynative")
    assert (done.returncode, done.stdout) == (1, "")
    assert "should be in the range" in done.stderr
    (run,) = runs(output)
    assert journal(run).frames["steps"].height >= 4


@pytest.mark.slow
def test_a_program_with_the_runtime_profiler_of_its_own_keeps_it(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, TRAINING + STEPS["model"])
    done = stepscope_run(
        output, path, "graph", "no", cwd=tmp_path, env={**os.environ, "MS_ENABLE_RUNTIME_PROFILER": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert "[Step:12" in done.stdout
    (run,) = runs(output)
    assert "MS_ENABLE_RUNTIME_PROFILER" in manifest(run)["collectors"]["mindspore"]["host_pipeline"]
    assert list((tmp_path / "rank_0").glob("RuntimeProfilerDetail*"))


#: A loop of its own that evaluates after step 30 and saves after step 40.
INSIDE = """
import time
import numpy as np
import mindspore as ms
from mindspore import nn, ops
ms.set_device("CPU")
ms.set_context(mode=ms.PYNATIVE_MODE)
net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 8))
ballast = nn.Dense(2000, 2000)
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
gradient = ms.value_and_grad(lambda x: ops.square(net(x)).mean(), None, optimizer.parameters)
x = ms.Tensor(np.ones((8, 64), np.float32))
for step in range(60):
    loss, gradients = gradient(x)
    optimizer(gradients)
    if step == 30:
        net.set_train(False)
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end:
            net(x)
        net.set_train(True)
    if step == 40:
        ms.save_checkpoint(ballast, "checkpoint.ckpt")
print("trained")
"""


@pytest.mark.slow
def test_an_evaluation_and_a_checkpoint_in_a_loop_are_named(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--skip", "10", script(tmp_path, INSIDE), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(output)
    rows = stepscope.open(run).ranks[0].result("step_times")
    assert len(rows) == 60
    assert "evaluation" in rows["Contains"][31]
    assert "checkpoint" in rows["Contains"][41]
