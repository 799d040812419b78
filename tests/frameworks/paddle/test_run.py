"""``stepscope run`` on programs that train with Paddle: they run as under ``python``; some steps are recorded."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.read import read_files
from tests.clocks import check_ends
from tests.frameworks.paddle.framework import check
from tests.frameworks.paddle.programs import (
    EAGER,
    EAGER_LOOP,
    OPTIMIZATION,
    STATIC_LOOP,
    TO_STATIC_LOOP,
    capture,
    counts,
    memory_times,
)
from tests.frameworks.torch.programs import environment, manifest, python, runs, script, stepscope_run
from tests.unit.collect.reading import Read, read_journal

#: Writes when each pass through the loop ended to a file.
STOPWATCH = "json.dump(stamps, open('stamps.json', 'w'))\n"


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


def check_steps(run: Path, folder: Path) -> None:
    """Steps 5 to 9 are there and last as long as a stopwatch in the loop says."""
    steps = journal(run).frames["steps"]
    assert steps["number"].to_list() == [5, 6, 7, 8, 9]
    stamps = json.loads((folder / "stamps.json").read_text())
    check_ends(steps, stamps[4:10], within=3e6)


def test_an_eager_loop_without_workers(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, EAGER + EAGER_LOOP + STOPWATCH)
    plain = python(path, "0", cwd=tmp_path)
    done = stepscope_run(output, "--memory", path, "0", cwd=tmp_path)
    # Then: the program says what it says alone
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "writing profiling data" not in done.stderr
    (run,) = runs(output)
    check_steps(run, tmp_path)
    assert counts(run)["momentum_ dygraph"] == 5 * 4
    assert manifest(run)["losses"] == {}
    check(run)


#: A program that updates its parameters itself.
WRITTEN_UPDATE = """
import paddle
weight, x = paddle.ones([8, 8]), paddle.rand([4, 8])
weight.stop_gradient = False
for number in range(40):
    loss = (x @ weight).square().mean()
    if number % 2:
        loss.backward()
        gradient = weight.grad
    else:
        (gradient,) = paddle.grad(loss, [weight])
    with paddle.no_grad():
        weight.set_value(weight - 0.1 * gradient)
    weight.clear_gradient()
print("trained")
"""


def test_a_program_without_an_optimizer_of_paddle(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--skip", "3", script(tmp_path, WRITTEN_UPDATE), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(output)
    # Then each computation of gradients ends a step, from the twenty-first on
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"]) == ("calls of paddle.autograd", [])
    assert "no optimizer of paddle" in found["rule"]
    assert len(stepscope.open(run).tables["run_steps"].collect()) in (19, 20)


def test_a_network_compiled_by_to_static(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, EAGER + TO_STATIC_LOOP + STOPWATCH)
    done = stepscope_run(output, path, "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    check_steps(run, tmp_path)
    # and each step holds the work that it asked for: both halves of the program, and the optimizer of four parameters
    rows = read_files([run / "rank0" / "capture" / "journal.ssj", capture(run)])
    steps, spans = rows["steps"].sort("ts"), rows["spans"]
    for name, calls in (("pd_op.matmul", 2), ("pd_op.matmul_grad", 2), ("momentum_ dygraph", 4)):
        begun = spans.filter(pl.col("name").cast(pl.String) == name)["ts"]
        inside = [
            begun.is_between(start, start + dur, closed="left").sum() for start, dur in steps["ts", "dur"].iter_rows()
        ]
        assert inside == [calls] * 5, name


#: A network of layers, parts of which Paddle compiles; prints after each step how many parts were.
IN_PARTS = """
import paddle
import stepscope
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

inner = paddle.nn.Sequential(paddle.nn.Linear(16, 32), paddle.nn.ReLU(), paddle.nn.Linear(32, 4))
net = paddle.jit.to_static(paddle.nn.Sequential(inner, paddle.nn.ReLU()))
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())

def step():
    net(paddle.ones([8, 16])).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    print(OpcodeExecutorCache().translate_count, flush=True)
"""


def check_parts(run: Path, printed: str) -> None:
    """Check that nothing was compiled behind the first step, and that the compiled network is a forward pass."""
    counts = [int(line) for line in printed.split()]
    assert counts[0] > 0
    assert set(counts) == {counts[0]}
    spans = stepscope.open(run).tables["spans"].collect().with_columns(pl.col("kind", "name").cast(pl.String))
    forwards = spans.filter((pl.col("kind") == "phase") & (pl.col("name") == "Sequential"))
    assert forwards.filter(pl.col("step") == spans["step"].max()).height == 1


def test_a_recording_does_not_make_parts_compile_again(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, f"{IN_PARTS}\nfor _ in range(14):\n    step()\n")
    done = stepscope_run(output, "--steps", "4:8", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    check_parts(run, done.stdout)


def test_parts_that_compile_while_recorded_do_not_compile_again(tmp_path: Path, output: Path) -> None:
    recorded = f"with stepscope.profile(output={str(output)!r}, analyse='later') as profile:"
    loop = f"{recorded}\n    for _ in range(4):\n        step()\n        profile.step()\nstep()\n"
    done = python(script(tmp_path, IN_PARTS + loop), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    check_parts(run, done.stdout)


#: A number of Python that changes makes a program of each step.
SCALED = """
import paddle

net = paddle.nn.Linear(16, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())

def scaled(x, scale):
    return (net(x) * scale).mean()

scaled = paddle.jit.to_static(scaled, full_graph=True)
for number in range(10):
    scaled(paddle.ones([8, 16]), 0.5 + number).backward()
    optimizer.step()
    optimizer.clear_grad()
"""


def test_a_program_that_is_made_again_has_its_backward_made_again(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "3:6", script(tmp_path, SCALED), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    spans = stepscope.open(run).tables["spans"].collect()
    compiled = spans.filter(pl.col("kind").cast(pl.String) == "compile").sort("ts")
    # Then both parts of making it are compilation, one behind the other
    stages = compiled["name"].cast(pl.String).str.extract(r"^(\w+) ").to_list()
    assert stages == ["compile", "differentiate"] * 4
    ends = (compiled["ts"] + compiled["dur"]).to_list()
    assert all(end <= start for end, start in zip(ends, compiled["ts"].to_list()[1:], strict=False))


@pytest.mark.parametrize("pir", ["1", "0"], ids=["pir", "no pir"])
def test_a_static_loop(tmp_path: Path, output: Path, pir: str) -> None:
    path = script(tmp_path, STATIC_LOOP + STOPWATCH)
    done = stepscope_run(output, "--memory", path, cwd=tmp_path, env=environment(FLAGS_enable_pir_api=pir))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
    (run,) = runs(output)
    check_steps(run, tmp_path)
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"]) == ("runs of programs with an optimizer", ["momentum"])
    assert counts(run)["pd_op.momentum_" if pir == "1" else "momentum"] == 5 * 4
    # and each operator has its phase, by its name: programs have no marks
    spans = read_files([run / "rank0" / "capture" / "journal.ssj", capture(run)])["spans"]
    phases = dict(
        spans.filter(pl.col("kind") == "operator").select(pl.col("name", "phase").cast(pl.String)).iter_rows()
    )
    product, update = ("pd_op.matmul", "pd_op.momentum_") if pir == "1" else ("matmul_v2", "momentum")
    assert (phases[product], phases[f"{product}_grad"], phases[update]) == ("forward", "backward", "optimizer")
    assert memory_times(run)
    assert manifest(run)["losses"] == {}


def test_the_first_steps(tmp_path: Path, output: Path) -> None:
    # Given: a recording that begins when Paddle has just been imported
    done = stepscope_run(output, "--steps", "0:3", script(tmp_path, EAGER + EAGER_LOOP), "0")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert journal(run).frames["steps"]["number"].to_list() == [0, 1, 2, 3]
    assert counts(run)["momentum_ dygraph"] == 4 * 4
    # and memory, which nobody asked for by name, is left out, and the manifest says so
    assert not memory_times(run)
    assert "--memory" in manifest(run)["collectors"]["paddle"]["missing"]["profile_memory"]


def test_a_program_that_has_used_paddles_profiler_is_marked_once(tmp_path: Path, output: Path) -> None:
    # Given: optimizers that Paddle's profiler has wrapped, and a profiler that is gone
    before = "\nwith paddle.profiler.Profiler(on_trace_ready=lambda _: None) as p:\n    pass\ndel p\n"
    done = stepscope_run(output, script(tmp_path, EAGER + before + EAGER_LOOP), "0")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 5}
    assert counts(run)["momentum_ dygraph"] == 5 * 4


@pytest.mark.slow
def test_a_large_recording_is_written_by_a_child(tmp_path: Path, output: Path) -> None:
    # Given: half a million events in a program with little memory of its own, and a data loader with its threads
    begin = f"import stepscope\nprofile = stepscope.profile(output={str(output)!r}, analyse='later')\nprofile.start()\n"
    loop = EAGER_LOOP.replace("    stamps", "    for _ in range(16000): x + x\n    stamps")
    end = "profile.stop()\nassert profile.recorded[0].wait()\n"
    done = python(script(tmp_path, EAGER + begin + loop + end), "2")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["collectors"]["paddle"]["saved_by"] == "a forked child"
    ((thread, added),) = added_on(run).items()
    assert (thread, added) == (manifest(run)["process"], 12 * 16000)


def added_on(run: Path) -> dict[int, int]:
    """Count the additions of vectors by thread, in the tables: half a million events."""
    tables = read_files([capture(run)])
    rows = tables["spans"].filter(pl.col("kind") == "operator", pl.col("parent").is_null() | (pl.col("depth") == 1))
    rows = rows.filter(pl.col("name").cast(pl.String).str.starts_with("add"), pl.col("phase") == "other")
    threads = tables["tracks"].select(track="id", thread="thread")
    return dict(rows.join(threads, on="track").group_by("thread").len().iter_rows())


STACKS = """
import paddle
import stepscope

def product(a):
    b = a + 1
    return paddle.matmul(b, a)  # product

def main():
    square = paddle.ones([200, 200])
    for _ in range(3):
        product(square)  # main

with stepscope.profile(with_stack=True, output="runs", quiet=True):
    main()  # program
"""


def test_a_stack_has_the_lines_that_call(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, STACKS)
    done = python(path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    stacks = stepscope.open(run).tables["stacks"].collect()["frames"].to_list()
    lines = STACKS.splitlines()
    ours = [[lines[frame["line"] - 1].strip() for frame in stack if frame["file"] == "train.py"] for stack in stacks]
    assert ["return paddle.matmul(b, a)  # product", "product(square)  # main", "main()  # program"] in ours
