"""``stepscope run`` on programs that train with MindSpore: they run as under ``python``; some steps are recorded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from stepscope.collect.doctor.diagnosis import diagnose
from stepscope.read import read_files
from tests.frameworks.mindspore.programs import STEPS, TRAINING, capture, counts, facts, host_events
from tests.frameworks.torch.programs import manifest, python, runs, stepscope_run
from tests.unit.collect.reading import Read, read_journal

#: Writes when each pass through the loop ended to a file.
STOPWATCH = "import json; json.dump(stamps, open('stamps.json', 'w'))\n"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


@pytest.mark.parametrize(
    ("way", "arguments", "by"),
    [
        ("cell", ["graph"], "runs of graphs with an optimizer"),
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
    assert steps["dur"][:4].sum() == pytest.approx(stamps[8] - stamps[4], rel=0.05, abs=2e6)
    # and their operators, all of them and no others
    assert counts(run)["ApplyMomentum"] == 5 * 4
    assert host_events(run)
    waits = [span for span in journal(run).spans if span["kind"] == "data"]
    assert len(waits) == 5


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


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [
        ("sys.exit(3)", 3, "failed at step 8"),
        ("raise KeyError('mine')", 1, "failed at step 8"),
        ("sys.exit()", 0, "complete"),
    ],
)
def test_a_program_that_ends_in_the_window_keeps_what_there_is(
    tmp_path: Path, output: Path, end: str, code: int, status: str
) -> None:
    path = script(
        tmp_path,
        TRAINING.replace("        stamps", f"        if len(stamps) == 7: {end}\n        stamps") + STEPS["cell"],
    )
    done = stepscope_run(output, path, "graph")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert "failed" not in manifest(run)["collectors"]["mindspore"]
    assert counts(run)["ApplyMomentum"] == 3 * 4
    assert host_events(run)


def test_an_operator_that_failed_on_another_thread_is_met_where_the_step_ends(tmp_path: Path, output: Path) -> None:
    # Given: the last step of the window, with an operator that fails when it runs
    fail = "    if len(stamps) == 9: ops.gather(ms.Tensor(np.ones((4, 4), np.float32)), ms.Tensor(np.array([99])), 0)\n"
    text = TRAINING + STEPS["functions"].replace("    optimizer(", f"{fail}    optimizer(")
    done = stepscope_run(output, script(tmp_path, text), "pynative")
    assert (done.returncode, done.stdout) == (1, "")
    assert "should be in the range" in done.stderr
    (run,) = runs(output)
    assert journal(run).frames["steps"].height >= 4


def test_a_killed_program_leaves_its_journal(tmp_path: Path, output: Path) -> None:
    kill = "        if len(stamps) == 8: time.sleep(1.5); import os; os.kill(os.getpid(), 9)\n        stamps"
    path = script(tmp_path, TRAINING.replace("        stamps", kill) + STEPS["cell"])
    done = stepscope_run(output, path, "pynative")
    assert done.returncode == -signal.SIGKILL
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    tables = read_files([run / "rank0" / "capture" / "journal.ssj"])
    assert tables["steps"]["number"].to_list() == [5, 6, 7, 8]
    # and the report of the whole run is there, too
    told = python("-m", "stepscope", "report", run)
    assert told.returncode == 0, told.stderr
    assert "Traceback" not in told.stderr


def test_a_whole_program_is_one_step(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "all", script(tmp_path, TRAINING + STEPS["cell"]), "graph")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["steps"]["recorded"] == 1
    assert counts(run)["ApplyMomentum"] == 12 * 4


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


def test_results_are_printed_and_computed(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, TRAINING + STEPS["model"])
    done = python("-m", "stepscope", "run", "--output", output, path, "graph", "no")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "5 steps" in done.stderr
    assert "MatMul" in done.stderr
    (run,) = runs(output)
    assert "ApplyMomentum" in (run / "rank0" / "results" / "op_statistic.csv").read_text()


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("print('no framework')", "did not import torch or mindspore"),
        ("import mindspore", "msrun … python -m stepscope"),
    ],
    ids=["no framework", "no step"],
)
def test_a_program_without_steps_says_how_to_go_on(tmp_path: Path, output: Path, text: str, advice: str) -> None:
    done = stepscope_run(output, script(tmp_path, text))
    assert done.returncode == 0
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
    assert runs(output) == []


def test_doctor_tries_a_window(tmp_path: Path) -> None:
    checks = {check.name: check for check in diagnose(tmp_path / "runs")}
    assert checks["MindSpore"].state == "yes", checks["MindSpore"].detail
    assert checks["PyTorch"].state == "partly"
    assert not list(tmp_path.iterdir())
