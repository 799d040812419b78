"""``stepscope run`` on a program of each framework: it runs as under ``python``, and some of its steps are recorded."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from statistics import mean

import polars as pl
import pytest

import stepscope
from stepscope.analyse.quantities import count_text
from stepscope.cli.main import main
from stepscope.collect.doctor.diagnosis import diagnose
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.read import read_files
from tests.clocks import check_ends
from tests.frameworks.contract.framework import BEGIN, Framework
from tests.frameworks.torch.programs import (
    environment,
    forked,
    forked_run,
    manifest,
    python,
    runs,
    script,
    stepscope_run,
)
from tests.sizes import first_quick
from tests.unit.collect.reading import read_journal

#: Names of the span of a compilation of `compute`.
COMPILED = ("compile compute", "compile jit(compute)")


def steps(run: Path) -> list[int]:
    return list(read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"]["number"])


def check_updates(framework: Framework, run: Path, count: int) -> None:
    """The recording holds this many updates, and at most those that were under way when the window opened."""
    assert 0 <= framework.updates(run) - count <= framework.in_flight


def test_a_loop(framework: Framework, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopwatch = "import json; json.dump(stamps, open('stamps.json', 'w'))\n"
    path = script(tmp_path, framework.program + stopwatch)
    plain = forked(path, *framework.arguments, cwd=tmp_path)
    done = forked_run(output, *framework.options, path, *framework.arguments, cwd=tmp_path)
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
    check_ends(read_journal(run / "rank0" / "capture" / "journal.ssj").frames["steps"], stamps[4:10], within=3e6)
    # and all that was done in them
    check_updates(framework, run, 5)
    framework.check(run)
    # and of all steps of the program, recorded or not, it is known how long they took and what the kernel says of them
    every = read_files([run / "rank0" / "capture" / name for name in ("journal.ssj", "steps.ssj")])["run_steps"]
    assert every["number"].to_list() == list(range(12))
    assert every.filter("recorded")["number"].to_list() == [5, 6, 7, 8, 9]
    check_ends(every[1:], stamps)
    assert every[6:][["cpu", "delay", "minor_faults", "involuntary_switches"]].null_count().row(0) == (0, 0, 0, 0)
    check_says_what_was_recorded(run, capsys)


#: What a program with two optimizers does in each of its 24 iterations.
ITERATIONS = {
    "in turn": "first(); second()",
    "a loop of its own": "for _ in range(5): first()\n    second()",
    "every fifth": "first(); (second() if number % 5 == 4 else None)",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "a loop of its own")) for kind in ITERATIONS]
)
def test_two_optimizers_make_one_step_an_iteration(
    framework: Framework, tmp_path: Path, output: Path, kind: str
) -> None:
    loop = f"for number in range(24):\n    {ITERATIONS[kind]}\n    time.sleep(0.002)\n"
    path = script(tmp_path, f"import time\n{framework.two}\n{loop}")
    done = forked_run(output, path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Then there is one run, whose steps are iterations: none is there twice, none lasts for two
    (run,) = runs(output)
    tables = stepscope.open(run).ranks[0].tables
    every, recorded = tables["run_steps"].collect(), tables["steps"].collect()
    assert every["number"].to_list() == list(range(24))
    assert every["ts"].is_sorted()
    assert every["recorded"].sum() == recorded.height >= 5
    assert every.filter("recorded")["number"].to_list() == recorded["number"].to_list()
    assert recorded["dur"].to_list() == every.filter("recorded")["dur"].to_list()
    assert every["dur"][1:].min() >= 2_000_000
    assert manifest(run)["losses"] == {}


def check_says_what_was_recorded(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``stepscope check`` calls recorded what is in the captures, with its number, and nothing else."""
    kinds = Counter(read_journal(run / "rank0" / "capture" / "journal.ssj").frames["spans"]["kind"].to_list())
    assert main(["check", str(run)]) == 0
    said = dict(
        line[10:].split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "collector " in line[:10]
    )
    used = {name for name, text in said.items() if text.startswith("recorded")}
    waits = {entry.name for framework in FRAMEWORKS.values() for entry in framework.waits} & used
    counted = [int(said[name].split()[1]) for name in waits if "nothing" not in said[name]]
    assert sum(counted) == kinds["data"]
    pauses = count_text(kinds["garbage"], "collection")
    assert said["garbage"] == (
        f"recorded {pauses}" if kinds["garbage"] else "recorded nothing: there was no collection"
    )
    frameworks = FRAMEWORKS.keys() & used
    operators = stepscope.open(run).tables["spans"].filter(pl.col("kind") == "operator").collect().height
    assert all(f"{operators:,} operator" in said[name] for name in frameworks)
    assert frameworks
    others = used - frameworks - waits - {"garbage", "host", "mindspore_shapes", "stack_samples"}
    assert all("nothing" in said[name] for name in others)


#: A module that notes, once imported, what a session of stepscope does that is slow: imports, processes, builds.
WATCH = """
import atexit, json, sys
slow = []
def watch(event, arguments):
    if event in ("import", "subprocess.Popen", "os.fork", "os.posix_spawn"):
        frame = sys._getframe()
        while frame is not None and "stepscope/collect/session/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            slow.append([event, *map(str, arguments[:1])])
sys.addaudithook(watch)
atexit.register(lambda: json.dump(slow, open('slow.json', 'w')))
"""


@pytest.mark.parametrize("switches", first_quick([[], ["--stacks", "--flops", "--modules"]]), ids=["default", "stacks"])
def test_everything_slow_is_done_before_the_first_step(
    framework: Framework, tmp_path: Path, output: Path, switches: list[str]
) -> None:
    # Given a program that notes what stepscope imports and starts from its first step on
    (tmp_path / "watch.py").write_text(WATCH)
    path = script(tmp_path, framework.program.replace(BEGIN, "import watch"))
    done = stepscope_run(output, *switches, path, *framework.arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Then the window opens and closes without any of it
    assert json.loads((tmp_path / "slow.json").read_text()) == []
    # and the manifest says how long that took
    cost = manifest(runs(output)[0])["cost"]
    assert cost.keys() == {"prepare_ns", "start_ns", "stop_ns"}
    assert min(cost.values()) > 0


#: A module that notes what a rehearsal could change for a program, and whether stepscope has rehearsed.
STATE = """
import gc, json, os, random, signal, sys, threading
import numpy
state = {
    "random": [random.random(), float(numpy.random.rand())],
    "environment": sorted(set(os.environ) - {"PWD", "OLDPWD"}),
    "threads": sorted(thread.name for thread in threading.enumerate()),
    "garbage": sum("host.garbage" in str(getattr(callback, "__module__", "")) for callback in gc.callbacks),
    "hooks": [str(sys.getprofile()), str(threading.getprofile()), str(signal.getsignal(15))],
    "directory": os.getcwd(),
    "temporary": sorted(os.listdir(os.environ["TMPDIR"])),
    "compiler": "torch._inductor" in sys.modules,
}
json.dump(state, open("state.json", "w"))
print("rehearsed" if "stepscope.collect.session.rehearsal" in sys.modules else "alone", file=sys.stderr)
"""


#: What a program may still choose when it has imported the framework, and no longer when that has run an operator.
CHOICES = {
    "torch": "torch.set_num_interop_threads(2)",
    "mindspore": "mindspore.set_device('CPU')",
    "paddle": "paddle.set_device('cpu')",
    "jax": "jax.config.update('jax_num_cpu_devices', 2)",
}


def test_a_rehearsal_changes_nothing_for_the_program(framework: Framework, tmp_path: Path, output: Path) -> None:
    # Given a program that configures its framework, and looks at its own state just before its loop
    name = framework.name
    seeded = f"import random, numpy, {name}; random.seed(7); numpy.random.seed(7); {CHOICES[name]}\n"
    path = script(tmp_path, seeded + framework.program.replace(BEGIN, "import state"))
    (tmp_path / "state.py").write_text(STATE)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    options = {"cwd": tmp_path, "env": environment(TMPDIR=str(temporary))}
    plain = python(path, *framework.arguments, **options)
    alone = json.loads((tmp_path / "state.json").read_text())
    done = stepscope_run(output, path, *framework.arguments, **options)
    # Then it is the same with a rehearsal
    assert json.loads((tmp_path / "state.json").read_text()) == alone
    # and the program says the same
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (0, plain.stdout)
    said = [line for line in done.stderr.partition("stepscope: ")[0].splitlines() if "Memory block of" not in line]
    assert said == plain.stderr.replace("alone", "rehearsed").splitlines()


#: A module with a metric that computes in Python for 40 ms, and waits for 40 ms; it notes how long each took.
METRIC = """
import atexit, json, time
spent = []
atexit.register(lambda: json.dump(spent, open("spent.json", "w")))
def metric():
    times = [time.perf_counter()]
    while time.perf_counter() < times[0] + 0.04:
        sum((1, 2))
    times.append(time.perf_counter())
    time.sleep(0.04)
    times.append(time.perf_counter())
    spent.append([times[1] - times[0], times[2] - times[1]])
"""


def test_lines_of_python_between_the_operators_have_their_time_over_all_steps(
    framework: Framework, tmp_path: Path, output: Path
) -> None:
    # Given a program that computes a metric after every step
    (tmp_path / "metrics.py").write_text(METRIC)
    line = next(line for line in framework.program.splitlines() if line.lstrip().startswith("stamps.append"))
    indent = line[: len(line) - len(line.lstrip())]
    text = framework.program.replace(line, f"{indent}metrics.metric()\n{line}").replace(BEGIN, "import metrics")
    done = forked_run(output, script(tmp_path, text), *framework.arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["collectors"]["stack_samples"]["samples"] > 0
    # Then its lines have their time in each step, computing and waiting, though no operator shows it
    lines = stepscope.open(run).results["python_lines"]
    assert isinstance(lines, pl.DataFrame)
    main = lines.filter((pl.col("Thread") == "MainThread") & pl.col("File").str.ends_with("metrics.py"))
    sleeping = pl.col("Line") == 1 + METRIC[: METRIC.index("time.sleep")].count("\n")
    spent = json.loads((tmp_path / "spent.json").read_text())
    computed, slept = (1e6 * mean(times) for times in zip(*spent, strict=True))
    for rows, states, took in (
        (main.filter(sleeping), ["Sleep(us)"], slept),
        (main.filter(~sleeping), ["Python(us)"], computed),
    ):
        assert rows["Self per Step(us)"].sum() == pytest.approx(took, rel=0.5)
        assert rows.select(pl.sum_horizontal(*states, "Core Wait(us)")).sum().item() > 0.6 * rows["Self(us)"].sum()
    # and whoever calls it has both in its total
    calls = lines.filter(pl.col("File").str.ends_with("train.py"))["Total per Step(us)"]
    assert calls.max() > 50_000  # of some 50 samples


def test_the_first_steps(framework: Framework, tmp_path: Path, output: Path) -> None:
    # Given a recording that begins when the framework has just been imported
    path = script(tmp_path, framework.program)
    done = forked_run(output, "--steps", "0:3", path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert steps(run) == [0, 1, 2, 3]
    check_updates(framework, run, 4)


def test_a_program_that_ends_before_its_window_leaves_the_times_of_its_steps(
    framework: Framework, tmp_path: Path, output: Path
) -> None:
    path = script(tmp_path, framework.program)
    done = forked_run(output, "--skip", "50", path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert f"Their times: stepscope report {run}" in done.stderr
    assert manifest(run)["steps"]["recorded"] == 0
    tables = read_files([run / "rank0" / "capture" / "steps.ssj"])
    assert tables["run_steps"]["number"].to_list() == list(range(12))
    assert tables["losses"].is_empty()


#: Starts two processes that train, each by itself.
SPAWNS = """
import multiprocessing, runpy, sys

def train(path, arguments):
    sys.argv = [path, *arguments]
    runpy.run_path(path)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=train, args=(sys.argv[1], sys.argv[2:])) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(any(worker.exitcode for worker in workers))
"""


@pytest.mark.slow
def test_processes_that_a_program_spawns_and_that_train_have_a_run_each(
    framework: Framework, tmp_path: Path, output: Path
) -> None:
    path = script(tmp_path, framework.program)
    (tmp_path / "spawns.py").write_text(SPAWNS)
    given = framework.arguments if framework.alone is None else framework.alone
    done = stepscope_run(output, "--steps", "5:9", tmp_path / "spawns.py", path, *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = runs(output)
    assert [manifest(run)["steps"]["recorded"] for run in (first, second)] == [5, 5]
    # The program's own process names both
    assert f"Next: stepscope report {second}\n" in done.stderr
    assert f"2 trainings were recorded, each in a run of its own. The others: {first}\n" in done.stderr


def test_a_whole_program_is_one_step(framework: Framework, tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, framework.program)
    done = forked_run(output, "--steps", "all", path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["steps"]["recorded"] == 1
    assert framework.updates(run) == 12


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [
        pytest.param("sys.exit(3)", 3, "ended at step 8 with exit code 3", marks=pytest.mark.slow),
        ("raise KeyError('mine')", 1, "failed at step 8"),
        pytest.param("sys.exit()", 0, "complete", marks=pytest.mark.slow),
    ],
)
def test_a_program_that_ends_in_the_window_keeps_what_there_is(
    framework: Framework, tmp_path: Path, output: Path, end: str, code: int, status: str
) -> None:
    path = script(tmp_path, framework.doing(end, after=7))
    done = forked_run(output, path, *framework.arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert "failed" not in manifest(run)["collectors"][framework.name]
    check_updates(framework, run, 3)


def test_compilations_are_there_with_what_is_compiled_and_why_again(
    framework: Framework, tmp_path: Path, output: Path
) -> None:
    # Given a program that compiles its function in the first step, and for another form in the seventh
    path = script(tmp_path, framework.recompiles)
    done = forked_run(output, path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    spans = read_journal(run / "rank0" / "capture" / "journal.ssj").spans
    (found,) = (span for span in spans if span["kind"] == "compile" and span["name"] in COMPILED)
    # Then a window of later steps has the second compilation, whole, with its reason
    assert "compute" in found["args"]["function"]
    assert all(rows in found["args"]["why"] for rows in ("16", "12"))
    assert found["dur"] > 1_000_000
    assert "train.py" in found["args"]["function"] or framework.name == "jax"
    assert "12" in found["args"].get("arguments", "12")
    # and of all steps, recorded or not, those that compile contain it
    tables = stepscope.open(run).ranks[0].tables
    steps, events = tables["run_steps"].collect(), tables["run_events"].filter(name="compile").collect()
    begin, end = steps.filter(number=6).select("ts", end=pl.col("ts") + pl.col("dur")).row(0)
    inside = events.filter(pl.col("ts").is_between(begin, end))["dur"].to_list()
    assert any(dur == pytest.approx(found["dur"], abs=1_000) for dur in inside)
    assert events["ts"].min() < steps["ts"][1]


def test_a_profile_that_nobody_stops_is_whole(framework: Framework, tmp_path: Path, output: Path) -> None:
    begin = f"import stepscope; stepscope.profile(output={str(output)!r}, analyse='later').start()"
    path = script(tmp_path, framework.program.replace(BEGIN, begin))
    done = forked(path, *framework.arguments)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert (manifest(run)["status"], framework.updates(run)) == ("complete", 12)


def test_recorded_windows_are_freed_though_the_profile_remembers_them(
    framework: Framework, tmp_path: Path, output: Path
) -> None:
    # Given a profile that has recorded a window in every step
    made = f"global profile; import stepscope; profile = stepscope.profile(output={str(output)!r}, analyse='later')"
    text = framework.program.replace(BEGIN, made)
    line = next(line for line in text.splitlines() if line.lstrip().startswith("stamps.append"))
    indent = line[: len(line) - len(line.lstrip())]
    again = f"{indent}profile.stop() if len(stamps) else None; profile.start()"
    ending = """
profile.stop()
import gc
from stepscope.collect.journal.journal import Journal
assert all(recorded.wait() for recorded in profile.recorded)
gc.collect()
alive = sum(type(thing) is Journal for thing in gc.get_objects())
said = f"{len(profile.recorded)} {alive} {profile.recorded[0].manifest['status']}"
with open("alive.txt", "w") as file:
    file.write(said)
"""
    path = script(tmp_path, text.replace(line, f"{again}\n{line}") + ending)
    done = forked(path, *framework.arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # Then it has their directories, and nothing else of them but of the last one
    assert (tmp_path / "alive.txt").read_text() in ("12 0 complete", "12 1 complete")


#: A module that kills the process when its journal holds step 8.
KILLED = """
import os, signal, time
from pathlib import Path
from stepscope.read import read_files

def written(output):
    found = list(Path(output).glob("*/rank0/capture/journal.ssj"))
    return any(8 in read_files([path])["steps"]["number"] for path in found)

def when_written(output):
    end = time.monotonic() + 60
    while not written(output) and time.monotonic() < end: time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_program_leaves_its_journal(
    framework: Framework, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a program that is killed when a block with its last step has been written
    (tmp_path / "killed.py").write_text(KILLED)
    path = script(tmp_path, framework.doing(f"__import__('killed').when_written({str(output)!r})", after=8))
    done = forked_run(output, path, *(framework.alone or framework.arguments))
    assert done.returncode == -signal.SIGKILL
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    assert main(["check", str(run)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("collector ")]
    assert not [line for line in said if line[10:].split()[1] == "recorded"]
    assert any("recording when the process ended" in line for line in said)
    tables = read_files([run / "rank0" / "capture" / "journal.ssj"])
    assert tables["steps"]["number"].to_list() == [5, 6, 7, 8]
    # and the whole run has a report
    report = python("-m", "stepscope", "report", run)
    assert report.returncode == 0, report.stderr
    assert "Traceback" not in report.stderr


def test_results_are_printed_and_computed(framework: Framework, tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, framework.shown or framework.program)
    done = python("-m", "stepscope", "run", "--skip", "5", "--output", output, path, *framework.arguments)
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
    done = forked_run(output, script(tmp_path, text))
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
