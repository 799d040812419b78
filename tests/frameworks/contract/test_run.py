"""``stepscope run`` on a program of each framework: it runs as under ``python``, and some of its steps are recorded."""

from __future__ import annotations

import json
import signal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.collect.doctor.diagnosis import diagnose
from stepscope.read import read_files
from tests.frameworks.contract.framework import BEGIN, Framework
from tests.frameworks.torch.programs import manifest, python, runs
from tests.unit.collect.reading import read_journal

NAMES = [name for name in ("torch", "mindspore", "paddle", "jax") if find_spec(name)]


@pytest.fixture(params=NAMES)
def framework(request: pytest.FixtureRequest) -> Framework:
    found: Framework = import_module(f"tests.frameworks.{request.param}.framework").FRAMEWORK
    return found


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def steps(run: Path) -> list[int]:
    return list(read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]["number"])


def check_updates(framework: Framework, run: Path, count: int) -> None:
    """The recording holds this many updates, and at most those that were under way when the window opened."""
    assert 0 <= framework.updates(run) - count <= framework.in_flight


def test_a_loop(framework: Framework, tmp_path: Path, output: Path) -> None:
    stopwatch = "import json; json.dump(stamps, open('stamps.json', 'w'))\n"
    path = script(tmp_path, framework.program + stopwatch)
    plain = framework.python(path, *framework.arguments, cwd=tmp_path)
    done = framework.stepscope_run(output, *framework.options, path, *framework.arguments, cwd=tmp_path)
    # Then the program says what it says alone
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout), done.stderr
    assert len(done.stdout.splitlines()) == 1
    (run,) = runs(output)
    assert f"stepscope report {run}" in done.stderr
    # and steps 5 to 9 are there, found without a word of the program
    assert steps(run) == [5, 6, 7, 8, 9]
    found = manifest(run)
    assert {"recorded": 5, **framework.found}.items() <= found["steps"].items()
    assert (found["status"], found["losses"]) == ("complete", {})
    # and they last as long as a stopwatch in the loop says
    stamps = json.loads((tmp_path / "stamps.json").read_text())
    durations = read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]["dur"]
    assert durations[1:4].sum() == pytest.approx(stamps[8] - stamps[5], rel=framework.tolerance, abs=2e6)
    # and all that was done in them
    check_updates(framework, run, 5)
    framework.check(run)


def test_the_first_steps(framework: Framework, tmp_path: Path, output: Path) -> None:
    # Given a recording that begins when the framework has just been imported
    path = script(tmp_path, framework.program)
    done = framework.stepscope_run(output, "--steps", "0:3", path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert steps(run) == [0, 1, 2, 3]
    check_updates(framework, run, 4)


def test_a_whole_program_is_one_step(framework: Framework, tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, framework.program)
    done = framework.stepscope_run(output, "--steps", "all", path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["steps"]["recorded"] == 1
    assert framework.updates(run) == 12


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [
        pytest.param("sys.exit(3)", 3, "failed at step 8", marks=pytest.mark.slow),
        ("raise KeyError('mine')", 1, "failed at step 8"),
        pytest.param("sys.exit()", 0, "complete", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_ends_in_the_window_keeps_what_there_is(
    framework: Framework, tmp_path: Path, output: Path, end: str, code: int, status: str
) -> None:
    path = script(tmp_path, framework.doing(end, after=7))
    done = framework.stepscope_run(output, path, *framework.arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert "failed" not in manifest(run)["collectors"][framework.name]
    check_updates(framework, run, 3)


def test_a_profile_that_nobody_stops_is_whole(framework: Framework, tmp_path: Path, output: Path) -> None:
    begin = f"import stepscope; stepscope.profile(output={str(output)!r}, analyse='later').start()"
    path = script(tmp_path, framework.program.replace(BEGIN, begin))
    done = framework.python(path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert (manifest(run)["status"], framework.updates(run)) == ("complete", 12)


def test_a_killed_program_leaves_its_journal(framework: Framework, tmp_path: Path, output: Path) -> None:
    # Given a program that is killed when the last block is more than a second old
    kill = "import os; time.sleep(1.5); os.kill(os.getpid(), 9)"
    path = script(tmp_path, framework.doing(kill, after=8))
    done = framework.stepscope_run(output, path, *(framework.alone or framework.arguments))
    assert done.returncode == -signal.SIGKILL
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    tables = read_files([run / "rank0" / "capture" / "journal.ssj"])
    assert tables["steps"]["number"].to_list() == [5, 6, 7, 8]
    # and the whole run has a report
    report = python("-m", "stepscope", "report", run)
    assert report.returncode == 0, report.stderr
    assert "Traceback" not in report.stderr


def test_results_are_printed_and_computed(framework: Framework, tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, framework.shown or framework.program)
    done = python("-m", "stepscope", "run", "--output", output, path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "5 steps" in done.stderr
    assert any(word in done.stderr for word in framework.operators)
    assert all(word in done.stderr for word in framework.summary)
    (run,) = runs(output)
    results = run / "rank0" / "results"
    lines = (results / "step_trace_time.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["Step", "5", "6", "7", "8", "9"]
    assert framework.statistic in (results / "op_statistic.csv").read_text()
    # and check names what recorded, and what the program had no use for
    said = python("-m", "stepscope", "check", run).stdout.splitlines()
    collectors = {line.split()[1]: line.split(maxsplit=2)[2] for line in said if line.startswith("collector ")}
    assert collectors.pop(framework.name).startswith("recorded")
    assert all(collectors[name].startswith("not used: ") for name in {"torch", "jax", "nvml"} - {framework.name})


def test_a_program_without_steps_says_how_to_go_on(framework: Framework, tmp_path: Path, output: Path) -> None:
    text, said = framework.idle or (f"import {framework.name}", "")
    done = framework.stepscope_run(output, script(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, said)
    assert all(words in done.stderr for words in framework.advice)
    assert "Traceback" not in done.stderr
    assert ("msrun" in done.stderr) == (framework.name == "mindspore")
    assert runs(output) == []


def test_a_program_without_a_framework_says_how_to_go_on(tmp_path: Path, output: Path) -> None:
    done = python("-m", "stepscope", "run", "--output", output, script(tmp_path, "print('no framework')"))
    assert done.returncode == 0
    assert "did not import torch or mindspore" in done.stderr
    assert "Traceback" not in done.stderr
    assert runs(output) == []


def test_doctor_tries_a_window(framework: Framework, tmp_path: Path) -> None:
    checks = {check.name: check for check in diagnose(tmp_path / "runs")}
    assert checks[framework.title].state == "yes", checks[framework.title].detail
    assert framework.name == "torch" or checks["PyTorch"].state == "partly"
    assert not list(tmp_path.iterdir())
