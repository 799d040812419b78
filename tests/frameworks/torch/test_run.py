"""``stepscope run``: the program runs as under ``python``, and some of its steps are recorded."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.collect.start.takes import SETTLING
from tests.frameworks.torch.programs import (
    LOOP,
    TRAINING,
    forked,
    forked_run,
    manifest,
    names,
    python,
    recorded_spans,
    recorded_steps,
    runs,
    script,
    stepscope_run,
)
from tests.unit.collect.reading import read_journal


def test_a_script_is_recorded_and_its_output_is_its_own(tmp_path: Path, output: Path) -> None:
    # When
    done = stepscope_run(output, script(tmp_path, LOOP), "12", "--skip", "3")
    # Then the script had its arguments, and standard output to itself
    assert (done.returncode, done.stdout) == (0, "trained 12\n")
    (run,) = runs(output)
    assert run.name.startswith("train_")
    assert f"stepscope report {run}" in done.stderr
    assert "USDT" not in done.stderr
    # and the default steps are there, found by the optimizer
    assert recorded_steps(recorded_spans(run)) == [5, 6, 7, 8, 9]
    assert names(recorded_spans(run), "cpu_op")["aten::addmm"] == 10
    assert names(recorded_spans(run), "user_annotation")["Optimizer.step#SGD.step"] == 5
    found = manifest(run)
    assert found["status"] == "complete"
    assert found["steps"] == {
        "source": "inferred",
        "by": "optimizer step hooks",
        "optimizers": ["SGD"],
        "rule": "each step of the optimizer ends a training step",
        "recorded": 5,
    }
    journal = read_journal(run / "rank0" / "capture" / "journal.ssj")
    assert journal.frames["steps"]["number"].to_list() == [5, 6, 7, 8, 9]
    assert set(journal.frames["steps"]["source"]) == {"inferred"}
    # and no step of torch's own ranges is torn: each lies within one step
    events = recorded_spans(run)
    marks = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"].startswith("ProfilerStep")]
    for event in events:
        if event["name"].startswith("Optimizer"):
            assert sum(begin <= event["ts"] and event["ts"] + event["dur"] <= end for begin, end in marks) == 1


def test_a_program_without_an_optimizer_has_steps_that_end_with_its_gradients(tmp_path: Path, output: Path) -> None:
    # Given a program that updates its parameters itself, by backward() and then by grad()
    program = """
import torch

weight = torch.randn(4, 4, requires_grad=True)
for number in range(60):
    loss = (torch.randn(4) @ weight).square().mean()
    if number % 2:
        loss.backward()
        gradient, weight.grad = weight.grad, None
    else:
        (gradient,) = torch.autograd.grad(loss, [weight])
    with torch.no_grad():
        weight -= 0.1 * gradient
print("trained")
"""
    # When
    done = forked_run(output, script(tmp_path, program), "--skip", "3")
    # Then each computation of gradients ends a step, from the twenty-first on
    assert (done.returncode, done.stdout) == (0, "trained\n")
    (run,) = runs(output)
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"]) == ("calls of torch.autograd", [])
    assert "no optimizer of torch" in found["rule"]


def test_the_files_are_the_users_alone(tmp_path: Path, output: Path) -> None:
    done = forked_run(output, script(tmp_path, LOOP), umask=0)
    assert done.returncode == 0
    (run,) = runs(output)
    for path in [output, run, *run.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (["--steps", "2:4"], [2, 3, 4]),
        (["--steps", "7"], [7]),
        (["--skip", "1", "--active", "2"], [1, 2]),
        (["--skip", "0", "--active", "1", "--"], [0]),
    ],
)
def test_the_steps_that_are_asked_for(tmp_path: Path, output: Path, options: list[str], steps: list[int]) -> None:
    done = forked_run(output, *options, script(tmp_path, LOOP))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert recorded_steps(recorded_spans(run)) == steps
    # one backward a step: nothing of the steps around
    assert names(recorded_spans(run), "cpu_op")["AddmmBackward0"] == 2 * len(steps)


def test_options_of_every_kind_reach_the_recording(tmp_path: Path, output: Path) -> None:
    # Given options that have other flags as well, numbers and lists
    options = [
        "--sys-io",
        "--host-sys",
        "cpu,mem",
        "--counters-hz",
        "2.5",
        "--no-shapes",
        "--activities=cpu",
        "--later",
    ]
    done = forked_run(output, *options, script(tmp_path, LOOP))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["door"] == "run"
    chosen = manifest(run)["options"]
    assert (chosen["sys_io"], chosen["host_sys"], chosen["counters_hz"]) == (True, ["cpu", "mem"], 2.5)
    assert (chosen["record_shapes"], chosen["profile_memory"], chosen["activities"]) == (False, True, ["cpu"])
    assert "Next: stepscope report" in done.stderr
    assert not (run / "rank0" / "results").exists()


def test_the_whole_program_is_one_step(tmp_path: Path, output: Path) -> None:
    text = "import torch\nfor _ in range(3): torch.ones(4, 4).mm(torch.ones(4, 4))\n"
    done = forked_run(output, "--steps", "all", script(tmp_path, text))
    assert done.returncode == 0
    (run,) = runs(output)
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 3
    assert recorded_steps(recorded_spans(run)) == [0]
    assert manifest(run)["steps"] == {"source": "inferred", "by": "the whole program is one step", "recorded": 1}


def test_a_module_and_code_run_as_under_python(tmp_path: Path, output: Path) -> None:
    # Given a package whose module says how it is run
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    say = "import sys\nprint(__name__, sys.argv[1:], repr(sys.path[0]), __spec__ and __spec__.name, __package__)\n"
    (package / "train.py").write_text(say)
    (package / "__main__.py").write_text(say)
    ways = [["-m", "project.train", "--epochs", "3"], ["-m", "project", "-q"], ["-c", say, "-m", "x"]]
    for way in ways:
        plain = python(*way, cwd=tmp_path)
        ours = stepscope_run(output, *way, cwd=tmp_path)
        assert (ours.returncode, ours.stdout) == (0, plain.stdout)
    assert runs(output) == []


INTROSPECTION = """
import atexit, multiprocessing, pickle, sys, threading, time
import __main__


class Thing:
    pass


def work(number):
    return Thing, number, __name__


def late():
    time.sleep(0.2)
    print("thread")


if __name__ == "__main__":
    atexit.register(lambda: print("atexit", __main__.Thing is Thing))
    print(pickle.loads(pickle.dumps(Thing)) is Thing, __main__.__dict__ is globals())
    print(sys.argv, repr(sys.path[0]), __file__, __spec__, __package__, __cached__, type(__builtins__).__name__)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print([(kind is Thing, number, name) for kind, number, name in pool.map(work, [1])])
    threading.Thread(target=late).start()
    print("end")
"""


def test_main_is_what_it_is_under_python(tmp_path: Path, output: Path) -> None:
    # pickling, multiprocessing by fork and spawn, threads that outlive main, atexit: all as without us
    path = script(tmp_path, INTROSPECTION)
    plain = python(path, "a", "--b")
    ours = stepscope_run(output, path, "a", "--b")
    assert plain.returncode == 0
    assert (ours.returncode, ours.stdout) == (0, plain.stdout)


def test_a_directory_with_a_main_runs(tmp_path: Path, output: Path) -> None:
    (tmp_path / "app").mkdir()
    script(
        tmp_path / "app", "import helper, sys\nprint(helper.X, sys.argv, sys.path[0], __spec__.name)\n", "__main__.py"
    )
    script(tmp_path / "app", "X = 5\n", "helper.py")
    plain = python("app", "1", cwd=tmp_path)
    ours = stepscope_run(output, "app", "1", cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (0, plain.stdout)


def test_gradient_accumulation_is_one_step_for_each_optimizer_step(tmp_path: Path, output: Path) -> None:
    text = TRAINING + (
        "for number in range(40):\n"
        "    (model(torch.randn(4, 8)).square().mean() / 4).backward()\n"
        "    if number % 4 == 3:\n"
        "        optimizer.step(); optimizer.zero_grad()\n"
    )
    forked_run(output, "--steps", "3:4", script(tmp_path, text))
    (run,) = runs(output)
    assert recorded_steps(recorded_spans(run)) == [3, 4]
    assert names(recorded_spans(run), "cpu_op")["aten::addmm"] == 2 * 4 * 2


TWO_OPTIMIZERS = (
    TRAINING
    + """
critic = nn.Linear(2, 1)
second = torch.optim.Adam(critic.parameters())
for number in range(14):
    for _ in range(CRITIC_STEPS):
        second.zero_grad()
        critic(model(torch.randn(4, 8)).detach()).mean().backward()
        second.step()
    step()
"""
)


@pytest.mark.parametrize(("critic_steps", "rule"), [(1, "equally often"), (5, "least often")])
def test_two_optimizers_make_one_step(tmp_path: Path, output: Path, critic_steps: int, rule: str) -> None:
    text = f"CRITIC_STEPS = {critic_steps}\n{TWO_OPTIMIZERS}"
    done = forked_run(output, script(tmp_path, text))
    (run,) = runs(output)
    # Then each of five steps holds all of the critic's steps and one of the model's
    counts = names(recorded_spans(run), "user_annotation")
    assert counts["Optimizer.step#SGD.step"] == 5, done.stderr
    assert counts["Optimizer.step#Adam.step"] == 5 * critic_steps
    assert recorded_steps(recorded_spans(run)) == [5, 6, 7, 8, 9]
    found = manifest(run)["steps"]
    assert rule in found["rule"]
    assert sorted(found["optimizers"]) == ["Adam", "SGD"]


@pytest.mark.parametrize(
    ("steps", "recorded", "said"),
    [
        (18, [11, 12, 13, 14, 15], "steps 11 to 15 are recorded instead of 5 to 9: until then Adam could still step."),
        (8, [], "before the first one to record; until then Adam could still step."),
    ],
)
def test_an_optimizer_that_never_steps_delays_the_window_for_a_few_steps_and_is_named(
    tmp_path: Path, output: Path, steps: int, recorded: list[int], said: str
) -> None:
    unused = "second = torch.optim.Adam([torch.ones(1, requires_grad=True)])\n"
    text = f"{TRAINING}{unused}for number in range({steps}): step()\n"
    done = forked_run(output, "--steps", "5:9", script(tmp_path, text))
    assert said in done.stderr
    (run,) = runs(output)
    assert recorded_steps(recorded_spans(run) if recorded else []) == recorded


@pytest.mark.parametrize(
    ("iterations", "active", "whole", "parts"),
    [(2, 3, [], 3), pytest.param(9, 40, [1, 2, 3, 4], 0, marks=pytest.mark.slow)],
    ids=["no step is whole", "four are"],
)
def test_a_window_whose_steps_prove_to_be_parts_of_one_says_so(
    tmp_path: Path, output: Path, iterations: int, active: int, whole: list[int], parts: int
) -> None:
    # Given a second optimizer that is made once the window is open, and a program that ends before another window
    text = TRAINING + (
        "second = None\n"
        f"for _ in range({iterations}):\n"
        "    for _ in range(8): step()\n"
        "    second = second or torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)\n"
        "    second.step()\n"
    )
    done = forked_run(output, "--skip", "1", "--active", str(active), script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["losses"] == {"steps_recounted": 1}
    tables = stepscope.open(run).ranks[0].tables
    losses = tables["losses"].collect()
    assert losses.filter(losses["what"] == "steps_recounted")["severity"].to_list() == ["data_loss"]
    # Then the steps of the run are the iterations, and recorded are those that lie whole in the window, else parts
    every, steps = tables["run_steps"].collect(), tables["steps"].collect()
    assert every["number"].to_list() == list(range(iterations))
    assert every.filter("recorded")["number"].to_list() == whole
    assert steps.height == len(whole) + parts
    assert steps["number"].to_list()[: len(whole)] == whole


def test_schedulers_scalers_and_closures_still_work(tmp_path: Path, output: Path) -> None:
    text = TRAINING + (
        "import warnings; warnings.simplefilter('error')\n"
        "import inspect, copy, pickle\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)\n"
        "class Mine(torch.optim.SGD):\n"
        "    def step(self, closure=None):\n"
        "        return super().step(closure)\n"
        "mine = Mine(model.parameters(), lr=0.01)\n"
        "for number in range(12):\n"
        "    step(); scheduler.step()\n"
        "    mine.step(lambda: (mine.zero_grad(), model(torch.randn(4, 8)).mean())[1])\n"
        "print(inspect.signature(optimizer.step), type(copy.deepcopy(mine)).__name__)\n"
        "print(len(pickle.loads(pickle.dumps(mine)).param_groups), scheduler.get_last_lr()[0] < 1e-6)\n"
    )
    path = script(tmp_path, text)
    plain, ours = forked(path), forked_run(output, "--active", "2", path)
    assert plain.returncode == 0, plain.stderr
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr
    (run,) = runs(output)
    assert names(recorded_spans(run), "cpu_op")["aten::randn"] == 4


@pytest.mark.slow
def test_a_compiled_step_is_compiled_as_before(tmp_path: Path, output: Path) -> None:
    # Given a program that insists on compiling the optimizer's step in one graph
    text = TRAINING + (
        "update = torch.compile(lambda: optimizer.step(), fullgraph=True, backend='eager')\n"
        "for number in range(12):\n"
        "    optimizer.zero_grad(); model(torch.randn(4, 8)).square().mean().backward(); update()\n"
        "print('trained')\n"
    )
    path = script(tmp_path, text)
    plain, ours = python(path), stepscope_run(output, path)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr


LOADER = (
    TRAINING
    + """
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 8))
    for epoch in range(2):
        for (batch,) in DataLoader(data, batch_size=8, num_workers=2):
            step()
    print("trained")
"""
)


def test_a_loader_with_workers(tmp_path: Path, output: Path) -> None:
    done = forked_run(output, "--steps", "9:12", script(tmp_path, LOADER))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(output)
    assert recorded_steps(recorded_spans(run)) == [9, 10, 11, 12]
    waits = [span for span in read_journal(run / "rank0" / "capture" / "journal.ssj").spans if span["kind"] == "data"]
    assert len(waits) == 4
    assert manifest(run)["collectors"]["dataloader"]["loaders"] >= 1


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("import torch\ntorch.ones(2)", "--steps all"),
        (LOOP.replace("20", "3"), "ended after 3 training steps"),
    ],
    ids=["no step", "too few steps"],
)
def test_a_program_without_the_steps_says_how_to_go_on(tmp_path: Path, output: Path, text: str, advice: str) -> None:
    done = forked_run(output, script(tmp_path, text))
    assert done.returncode == 0
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
    assert len(runs(output)) == (1 if "Their times" in done.stderr else 0)
    assert ("Their times" in done.stderr) == ("training steps" in advice)


def test_a_program_that_ends_in_the_window_keeps_what_there_is(tmp_path: Path, output: Path) -> None:
    done = forked_run(output, script(tmp_path, LOOP), "8")
    assert done.returncode == 0
    (run,) = runs(output)
    assert recorded_steps(recorded_spans(run))[:3] == [5, 6, 7]
    assert manifest(run)["losses"] == {"steps_not_recorded": 2}


def test_a_program_sees_no_thread_that_records_it(tmp_path: Path, output: Path) -> None:
    # Given a program that asks for its threads in the window, and profiles itself with stacks after it
    text = (
        TRAINING
        + """
import json, statistics, sys, threading, time

seen, states, traced = set(), [], []
for _ in range(9):
    step()
    seen |= {thread.name for thread in threading.enumerate()}
    states.append(len(sys._current_frames()))
while threading.active_count() > 1:
    time.sleep(0.01)
for _ in range(9):
    with torch.profiler.profile(with_stack=True) as own:
        step()
    own.export_chrome_trace("own.json")
    events = json.load(open("own.json"))["traceEvents"]
    traced.append(len({event["tid"] for event in events if event.get("cat") == "python_function"}))
print(sorted(seen), statistics.median(states), statistics.median(traced))  # one may begin while a thread works
"""
    )
    done = stepscope_run(output, "--skip", "1", "--active", "20", script(tmp_path, text), cwd=tmp_path)
    # Then they are its own
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['MainThread'] 1 1\n"


def test_a_program_that_profiles_itself_is_left_alone(tmp_path: Path, output: Path) -> None:
    text = TRAINING + (
        "import stepscope\n"
        "step(); step()\n"
        f"with stepscope.profile(output={str(output)!r}, analyse='later') as profile:\n"
        "    for _ in range(3): step(); profile.step()\n"
    )
    done = forked_run(output, "--skip", "1", script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    first, second = runs(output)
    assert manifest(first)["ended_by"] == "the program's own stepscope.profile"
    assert recorded_steps(recorded_spans(first))[0] == 1
    assert recorded_steps(recorded_spans(second))[:3] == [0, 1, 2]


def test_a_window_that_is_prepared_gives_way_to_the_programs_own(tmp_path: Path, output: Path) -> None:
    # Given a program that begins its own profile after our window was prepared, and before it would open
    text = TRAINING + (
        "import stepscope\n"
        "step(); step(); step()\n"
        f"with stepscope.profile(output={str(output)!r}, analyse='later') as profile:\n"
        "    for _ in range(9): step(); profile.step()\n"
    )
    done = forked_run(output, script(tmp_path, text))
    # Then only that is recorded
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["steps"]["source"] == "declared"
    assert recorded_steps(recorded_spans(run))[:3] == [0, 1, 2]


def test_a_program_that_profiles_itself_from_the_start_is_left_alone(tmp_path: Path, output: Path) -> None:
    text = TRAINING + (
        "import stepscope\n"
        f"with stepscope.profile(output={str(output)!r}, analyse='later') as profile:\n"
        "    for _ in range(12): step(); profile.step()\n"
    )
    done = forked_run(output, script(tmp_path, text))
    assert done.returncode == 0
    assert "profiles itself" in done.stderr
    (run,) = runs(output)
    assert len(recorded_steps(recorded_spans(run))) >= 12


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--active", "0", "x.py"],
        ["--counters-hz", "100000", "x.py"],
        ["--sample", "some", "x.py"],
        ["--steps", "1:2", "--skip", "1", "x.py"],
        ["missing.py"],
        ["-m", "no.such.module"],
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(tmp_path: Path, output: Path, arguments: list[str]) -> None:
    script(tmp_path, "", "x.py")
    done = stepscope_run(output, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("stepscope: ")


LOADING = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        return decoded(index)
def decoded(index):
    return torch.ones(4) * index
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Numbers(), batch_size=5):
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("collector", ["native", "kineto"])
def test_stacks_show_what_a_loader_calls(tmp_path: Path, output: Path, collector: str) -> None:
    done = forked_run(output, "--with-stack", "--collector", collector, script(tmp_path, LOADING))
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    spans = stepscope.open(run).tables["spans"].filter(pl.col("kind") == "python", pl.col("step").is_not_null())
    called = [name.rpartition(": ")[2] for name in spans.select("name").collect()["name"].cast(pl.String)]
    assert sum(name.endswith("__getitem__") for name in called) == sum(name == "decoded" for name in called) == 25


@pytest.mark.parametrize("second", [30, 100])
def test_all_steps_of_a_second_stage_are_timed(tmp_path: Path, output: Path, second: int) -> None:
    # Given a program that trains 40 steps with one optimizer, and then others with another one
    stages = f"""
import time
first = [step() for _ in range(40)]
optimizer = torch.optim.Adam(model.parameters())
begun = time.perf_counter_ns()
for _ in range({second}):
    step()
print(time.perf_counter_ns() - begun)
"""
    kept = "kept = optimizer\n"  # the program still has the first one
    # When
    done = forked_run(output, script(tmp_path, TRAINING + kept + stages))
    # Then the times of all steps are there, each with its own
    steps = stepscope.open(runs(output)[0]).tables["run_steps"].collect()
    assert steps["number"].to_list() == list(range(40 + second))
    assert steps["dur"].null_count() <= 1
    assert steps["dur"][41:].sum() <= int(done.stdout)


@pytest.mark.parametrize(("skip", "prepared"), [(5, 1), (20, 20 - SETTLING)])
def test_the_window_is_prepared_some_steps_before_it_opens(
    tmp_path: Path, output: Path, skip: int, prepared: int
) -> None:
    # Given a program that notes after how many steps the manifest names collectors, which the preparation writes
    noting = f"""
import json, pathlib

def is_prepared():
    found = list(pathlib.Path({str(output)!r}).glob("*/rank0/manifest.json"))
    return bool(found) and bool(json.loads(found[0].read_text())["collectors"])

first = None
for number in range(40):
    if first is None and is_prepared():
        first = number
    step()
print(first)
"""
    # When
    done = forked_run(output, "--skip", str(skip), script(tmp_path, TRAINING + noting))
    # Then the steps between have filled and drained what the preparation held up
    assert (done.returncode, done.stdout) == (0, f"{prepared}\n"), done.stderr


def test_a_signal_that_ends_the_program_leaves_the_times_of_all_steps(tmp_path: Path, output: Path) -> None:
    # Given a program that gets a signal while a window is open
    killed = "\nfor number in range(1000):\n    step()\n    if number == 7: os.kill(os.getpid(), signal.SIGHUP)\n"
    # When
    forked_run(output, script(tmp_path, TRAINING + killed))
    # Then the steps before the window are there, too
    (run,) = runs(output)
    steps = stepscope.open(run).tables["run_steps"].collect()
    assert manifest(run)["status"] == "ended at step 8 by SIGHUP"
    assert steps["number"].to_list() == list(range(8))
    assert steps["recorded"].to_list() == [False] * 5 + [True] * 3
