"""Sampled stacks of real trainings: what takes the time is the first line, also in workers and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

import stepscope
from stepscope.collect.surgery.python_layout import refusal
from stepscope.read import read_files
from tests.frameworks.torch.programs import environment, forked_run, manifest, runs, stepscope_run
from tests.sizes import Size

if refusal():
    pytest.skip(str(refusal()), allow_module_level=True)

#: A training whose step takes a few milliseconds, and in which one thing is wrong.
PROGRAM = """
import copy, gc, logging, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
WORDS = "the quick brown fox jumps over the lazy dog " * 30

def busy(ms):
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass

class Samples(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        {item}
        return torch.randn(32), index % 2

def collate(batch):
    {collate}
    return torch.stack([x for x, _ in batch]), torch.tensor([y for _, y in batch])

lock = threading.Lock()
def holder():
    while True:
        {thread}

def main():
    threading.Thread(target=holder, daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Samples(), batch_size=4, collate_fn=collate, num_workers={workers})
    end = time.time() + {seconds}
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        {step}
        if time.time() > end:
            break

if __name__ == "__main__":
    main()
"""
#: What is wrong → where it stands, the statement, and the state that most of its time is in.
PLANTED = {
    "getitem": ("item", "busy(3)", "Python(us)"),
    "collate": ("collate", "busy(12)", "Python(us)"),
    "tokenizer": ("step", "[word for _ in range(300) for word in WORDS.split()]", "Python(us)"),
    "sleep": ("step", "time.sleep(0.012)", "Sleep(us)"),
    "deepcopy": ("step", "copy.deepcopy([[i] for i in range(8000)])", "Python(us)"),
    "collect": ("step", "gc.collect()", "Collecting(us)"),
    "lock": ("step", "lock.acquire(); lock.release()", "Lock(us)"),
    "product": ("step", "torch.ones(600, 600) @ torch.ones(600, 600)", "Native(us)"),
}
THREADS = {"lock": "lock.acquire(); time.sleep(0.03); lock.release(); time.sleep(0.001)"}
QUICK = ("getitem", "lock")


def planted(name: str, seconds: float, workers: int = 0) -> tuple[str, int]:
    """Return the program with what is wrong in it, and the number of its line."""
    place, statement, _ = PLANTED[name]
    values = dict.fromkeys(("item", "collate", "step"), "pass") | {place: statement}
    text = PROGRAM.format(**values, thread=THREADS.get(name, "time.sleep(1)"), workers=workers, seconds=seconds)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.strip() == statement)
    return text, line


def record(folder: Path, text: str, run: Callable[..., CompletedProcess[str]] = forked_run) -> Path:
    (folder / "train.py").write_text(text)
    done = run(folder / "runs", "--active", "2", folder / "train.py")
    assert done.returncode == 0, done.stderr
    (recorded,) = runs(folder / "runs")
    return recorded


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PLANTED]
)
def test_what_takes_the_time_is_the_first_line(tmp_path: Path, name: str, size: Size) -> None:
    text, line = planted(name, 6.0 if size.full else 2.0)
    lines = stepscope.open(record(tmp_path, text)).results["python_lines"]
    assert isinstance(lines, pl.DataFrame)
    main = lines.filter((pl.col("Thread") == "MainThread") & pl.col("File").str.ends_with("train.py"))
    # Self time by what the main function or the data set calls: what is in `busy` counts for its caller
    of_line = main.filter(pl.col("Line") == line)["Total per Step(us)"].sum()
    others = main.filter(~pl.col("Function").is_in(["<module>", "busy"]) & (pl.col("Line") != line))
    rivals = others.filter(pl.col("Phase").ne_missing("data") | (PLANTED[name][0] not in ("item", "collate")))
    rivals = rivals.group_by("Line").agg(total=pl.col("Total per Step(us)").sum())
    assert of_line > max(rivals["total"], default=0)
    # and it is known what it does, or that it waits for a core
    inner = main.filter(pl.col("Line").is_in([line, *_lines_of_busy(text)]))
    known = inner[PLANTED[name][2]].sum() + inner["Core Wait(us)"].sum()
    assert known > 0.7 * inner["Self(us)"].sum(), inner


def _lines_of_busy(text: str) -> list[int]:
    first = text.splitlines().index("def busy(ms):") + 1
    return [*range(first, first + 4)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_workers_are_read_from_their_parent(tmp_path: Path, method: str) -> None:
    text, line = planted("getitem", 8.0 if method == "fork" else 15.0, workers=2)
    text = text.replace("num_workers=2", f"num_workers=2, multiprocessing_context={method!r}")
    run = record(tmp_path, text, stepscope_run)  # a forked program cannot spawn
    lines = stepscope.open(run).results["python_lines"]
    assert isinstance(lines, pl.DataFrame)
    workers = lines.filter(pl.col("Thread") == "workers")
    assert workers.filter(pl.col("Line") == line)["Total(us)"].sum() > 0.3 * workers["Self(us)"].sum()
    # and no frame of the program that began them is taken for theirs
    assert not workers.filter(pl.col("Function") == "main").height
    samples = stepscope.open(run).tables["samples"].filter(pl.col("worker").is_not_null()).collect()
    assert samples["process"].n_unique() == 2


def test_a_killed_program_keeps_its_samples(tmp_path: Path) -> None:
    text, line = planted("getitem", 60.0)
    (tmp_path / "train.py").write_text(text)
    output = tmp_path / "runs"
    command = [sys.executable, "-m", "stepscope", "run", "-o", output, "--skip", "1000000", tmp_path / "train.py"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.time() + 60
    file = None
    while time.time() < deadline:
        file = next(iter(output.glob("*/rank0/capture/steps.ssj")), None)
        if file is not None and file.stat().st_size > 8_000:
            break
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert file is not None
    frames = read_files([file])
    assert frames["samples"].height > 20
    assert line in frames["stacks"].explode("frames").unnest("frames")["line"].to_list()


def test_a_recording_without_samples_says_nothing_of_lines(tmp_path: Path) -> None:
    text, _ = planted("sleep", 0.5)
    (tmp_path / "train.py").write_text(text)
    done = forked_run(tmp_path / "runs", "--stacks-hz", "0", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    assert "stack_samples" not in manifest(run)["collectors"]
    assert "python_lines" not in stepscope.open(run).results


def test_the_thread_that_ends_the_steps_is_the_one_that_trains(tmp_path: Path) -> None:
    # Given a main thread that only waits for another, which trains
    text, line = planted("tokenizer", 2.0)
    text = text.replace("    main()\n", "    it = threading.Thread(target=main)\n    it.start(); it.join()\n")
    found = stepscope.open(record(tmp_path, text)).results["python_lines"]
    # Then its lines come first, and those of the other are of a thread beside it
    assert found["Thread"][0].endswith("(main)")
    assert found["Line"][0] == line
    assert "MainThread" in found["Thread"].to_list()
