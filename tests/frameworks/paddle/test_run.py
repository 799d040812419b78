"""``stepscope run`` on programs that train with Paddle: they run as under ``python``; some steps are recorded."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import polars as pl
import pytest

from stepscope.collect.doctor.diagnosis import diagnose
from stepscope.read import read_files
from tests.frameworks.paddle.programs import (
    DATA,
    EAGER,
    EAGER_LOOP,
    OPTIMIZATION,
    STATIC_LOOP,
    capture,
    counts,
    memory_times,
)
from tests.frameworks.torch.programs import environment, manifest, python, runs, stepscope_run
from tests.unit.collect.reading import Read, read_journal

#: Writes when each pass through the loop ended to a file.
STOPWATCH = "json.dump(stamps, open('stamps.json', 'w'))\n"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


def check_steps(run: Path, folder: Path) -> None:
    """Steps 5 to 9 are there and last as long as a stopwatch in the loop says."""
    steps = journal(run).frames["steps"]
    assert steps["number"].to_list() == [5, 6, 7, 8, 9]
    stamps = json.loads((folder / "stamps.json").read_text())
    assert steps["dur"][1:4].sum() == pytest.approx(stamps[8] - stamps[5], rel=0.05, abs=2e6)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_eager_loop(tmp_path: Path, output: Path, workers: str) -> None:
    path = script(tmp_path, EAGER + EAGER_LOOP + STOPWATCH)
    plain = python(path, workers, cwd=tmp_path)
    done = stepscope_run(output, "--memory", path, workers, cwd=tmp_path)
    # Then: the program says what it says alone
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert "writing profiling data" not in done.stderr
    (run,) = runs(output)
    check_steps(run, tmp_path)
    found = manifest(run)["steps"]
    assert (found["by"], found["optimizers"], found["recorded"]) == ("calls of optimizers", ["Momentum"], 5)
    # and there are all operators, layers, waits and memory of these steps
    assert counts(run)["momentum_ dygraph"] == 5 * 4
    assert counts(run)["matmul dygraph"] == 5 * 2
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 5}
    assert counts(run, DATA) == {}
    waits = [span for span in journal(run).spans if span["kind"] == "data"]
    assert len(waits) == 5
    assert memory_times(run)
    assert manifest(run)["losses"] == {}
    check_tables(run)


def check_tables(run: Path) -> None:
    """In the tables all lies on one time line: operators in steps and phases, layers as their modules."""
    tables = read_files([run / "rank0" / "capture" / "journal.ssj", capture(run)])
    operators = tables["spans"].filter(pl.col("kind") == "operator")
    inside = operators.filter(pl.col("step").is_not_null())
    assert inside.height == operators.height
    per_step = inside.group_by("step").len()["len"].to_list()
    assert len(set(per_step)) == 1
    phases = set(inside["phase"].cast(pl.String).to_list())
    assert phases >= {"forward", "backward", "optimizer"}
    assert operators["track"].n_unique() == 1
    modules = set(tables["operators"]["module"].cast(pl.String).to_list())
    assert "Sequential/Linear" in modules
    assert tables["losses"].filter(pl.col("severity") != "info").height == 0


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


def test_a_whole_program_is_one_step(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, "--steps", "all", script(tmp_path, EAGER + EAGER_LOOP), "0")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert manifest(run)["steps"]["recorded"] == 1
    assert counts(run)["momentum_ dygraph"] == 12 * 4


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
    text = EAGER + EAGER_LOOP.replace("    stamps", f"    if len(stamps) == 7: {end}\n    stamps")
    done = stepscope_run(output, script(tmp_path, text), "2")
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == status
    assert "failed" not in manifest(run)["collectors"]["paddle"]
    assert counts(run)["momentum_ dygraph"] == 3 * 4


def test_a_profile_that_nobody_stops_is_whole(tmp_path: Path, output: Path) -> None:
    begin = f"import stepscope\nstepscope.profile(output={str(output)!r}, analyse='later').start()\n"
    done = python(script(tmp_path, EAGER + begin + EAGER_LOOP), "0")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert (manifest(run)["status"], manifest(run)["steps"]["recorded"]) == ("complete", 12)
    assert counts(run)["momentum_ dygraph"] == 12 * 4


def test_a_killed_program_leaves_its_journal(tmp_path: Path, output: Path) -> None:
    kill = "    if len(stamps) == 8: time.sleep(1.5); os.kill(os.getpid(), 9)\n    stamps"
    done = stepscope_run(output, script(tmp_path, EAGER + EAGER_LOOP.replace("    stamps", kill)), "0")
    assert done.returncode == -signal.SIGKILL
    (run,) = runs(output)
    assert manifest(run)["status"] == "recording"
    tables = read_files([run / "rank0" / "capture" / "journal.ssj"])
    assert tables["steps"]["number"].to_list() == [5, 6, 7, 8]


def test_a_program_that_has_used_paddles_profiler_is_marked_once(tmp_path: Path, output: Path) -> None:
    # Given: optimizers that Paddle's profiler has wrapped, and a profiler that is gone
    before = "\nwith paddle.profiler.Profiler(on_trace_ready=lambda _: None) as p:\n    pass\ndel p\n"
    done = stepscope_run(output, script(tmp_path, EAGER + before + EAGER_LOOP), "0")
    assert done.returncode == 0, done.stderr
    (run,) = runs(output)
    assert counts(run, OPTIMIZATION) == {"Optimization Step": 5}
    assert counts(run)["momentum_ dygraph"] == 5 * 4


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


def test_results_are_printed_and_computed(tmp_path: Path, output: Path) -> None:
    path = script(tmp_path, EAGER + EAGER_LOOP)
    done = python("-m", "stepscope", "run", "--output", output, path, "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
    assert "5 steps" in done.stderr
    assert "momentum_" in done.stderr or "matmul" in done.stderr
    assert "2 workers" in done.stderr
    (run,) = runs(output)
    assert "momentum_" in (run / "rank0" / "results" / "op_statistic.csv").read_text()


def test_a_program_without_steps_says_how_to_go_on(tmp_path: Path, output: Path) -> None:
    done = stepscope_run(output, script(tmp_path, "import paddle"))
    assert done.returncode == 0
    assert "no optimizer stepped" in done.stderr
    assert "use `python -m paddle.distributed.launch … stepscope run` for them" in done.stderr
    assert "Traceback" not in done.stderr
    assert runs(output) == []


def test_doctor_tries_a_window(tmp_path: Path) -> None:
    checks = {check.name: check for check in diagnose(tmp_path / "runs")}
    assert checks["Paddle"].state == "yes", checks["Paddle"].detail
    assert checks["PyTorch"].state == "partly"
    assert not list(tmp_path.iterdir())
