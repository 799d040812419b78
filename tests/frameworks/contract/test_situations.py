"""What a program does around its recordings: one program for each framework, and a test for each row of reliability.md.

The same on every framework. What several frameworks record of one program differs, so each test looks at what the
program has done: its steps, its updates, and what its own calls have said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from tests.faults.test_clock_set import clock
from tests.frameworks.contract.framework import NAMES, Framework, framework_of
from tests.frameworks.torch.programs import environment, forked, forked_run, manifest, python, runs, script

__all__ = ["clock"]

PROGRAM = """
import importlib, json, os, pathlib, signal, subprocess, sys, threading, time
import stepscope
from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.session import window
from stepscope.errors import LifecycleError, OutputError

said = {}

def profile(name, **options):
    return stepscope.profile(output=f"runs/{name}", analyse="later", quiet=True, **options)

def refused(call):
    try:
        call()
    except LifecycleError as error:
        return str(error)

def on_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

def broken(recorded):
    raise RuntimeError("of the handler")

first()  # what compiles does so here

with profile("handler", on_trace_ready=broken) as recording:
    first(); recording.step()

with profile("fork") as recording:
    first(); recording.step()
    child = os.fork()
    if child == 0:
        with stepscope.span("of the child"):
            recording.step()
        recording.stop()
        os._exit(7)
    said["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    first(); recording.step()

with profile("subprocess") as recording:
    asks = "import os, sys; print('stepscope' in sys.modules, [key for key in os.environ if 'STEPSCOPE' in key])"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    said["subprocess"] = done.stdout
    first(); recording.step()

recording = profile("threads")
on_a_thread(recording.start)
first(); recording.step()
first(); recording.step()
on_a_thread(recording.stop)

recording = profile("calls")
said["step before start"] = refused(recording.step)
said["stop before start"] = refused(recording.stop)
recording.start()
said["start twice"] = refused(recording.start)
said["a second profile"] = refused(profile("second").start)
first(); recording.step()
recording.stop()
recording.stop()
said["step after stop"] = refused(recording.step)

with profile("spans") as recording:
    outer, inner, open_ = stepscope.span("outer"), stepscope.span("inner"), stepscope.span("left open")
    outer.__enter__(); inner.__enter__()
    first()
    outer.__exit__(None, None, None); inner.__exit__(None, None, None)
    open_.__enter__()
    recording.step()

class Deleted:
    def __del__(self):
        with stepscope.span("in __del__"):
            pass

def interrupted(number, frame):
    with stepscope.span("in a handler of a signal"):
        pass

signal.signal(signal.SIGUSR1, interrupted)
with profile("interrupted") as recording:
    for _ in range(2):
        with stepscope.span("interrupted"):
            signal.raise_signal(signal.SIGUSR1)
            Deleted()
        first(); recording.step()

open("taken", "w").close()
try:
    stepscope.profile(output="taken", analyse="later").start()
except OutputError as error:
    said["an output that is a file"] = str(error)
with profile("again") as recording:
    first(); recording.step()
recording.recorded[0].wait(30)  # its files are complete behind the program
def files():
    return {(str(path), path.stat().st_mtime_ns) for path in pathlib.Path("runs/again").rglob("*") if path.is_file()}

before = files()
with profile("again") as recording:
    first(); recording.step()
said["the first run stays"] = len(before) > 0 and before < files()

def unable(self):
    raise RuntimeError("cannot start")

window.CLOSING = 0.5
entry = FRAMEWORKS[sys.argv[1]].operators
kind = getattr(importlib.import_module(entry.module), entry.kind)
start, kind.start = kind.start, unable
with profile("unable", collector="kineto") as recording:
    first(); recording.step()
kind.start = start
stop = kind.stop
kind.stop = lambda self: (stop(self), time.sleep(60))[0]
begun = time.monotonic()
with profile("hang", collector="kineto") as recording:
    first(); recording.step()
kind.stop = stop
said["waited"] = time.monotonic() - begun

with profile("after") as recording:
    first(); recording.step()
recording.recorded[0].wait()
json.dump(said, open("said.json", "w"))
"""


class Situations:
    """What the program has said of itself, and what it has left."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.said: dict[str, Any] = json.loads((folder / "said.json").read_text())

    def run(self, name: str) -> Path:
        """Return the only run of a recording."""
        (run,) = runs(self.runs / name)
        return run

    def table(self, name: str, table: str) -> pl.DataFrame:
        """Return a table of a recording."""
        return stepscope.open(self.run(name)).ranks[0].tables[table].collect()

    def check(self, name: str, steps: int, losses: dict[str, int] | None = None) -> None:
        """The recording is complete, has so many steps, and operators in each of them; what it lost is this."""
        found = manifest(self.run(name))
        assert (found["status"], found["losses"]) == ("complete", losses or {})
        assert self.table(name, "steps")["number"].to_list() == list(range(steps))
        spans = self.table(name, "spans")
        inside = spans.filter(spans["kind"] == "operator")["step"].drop_nulls()
        assert set(inside.to_list()) == set(range(steps))


@pytest.fixture(scope="module", params=NAMES)
def situations(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Situations]:
    found = framework_of(request.param)
    folder = tmp_path_factory.mktemp("situations")
    path = script(folder, found.two + PROGRAM)
    done = forked(path, found.name, cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    yield Situations(folder)


def test_a_handler_that_raises(situations: Situations) -> None:
    situations.check("handler", 1, {"handler_failed": 1})
    assert manifest(situations.run("handler"))["messages"][-1] == "handler_failed: RuntimeError: of the handler"


def test_a_forked_child(situations: Situations) -> None:
    assert situations.said["child"] == 7
    situations.check("fork", 2)
    assert "of the child" not in situations.table("fork", "spans")["name"].cast(str).to_list()


def test_a_subprocess(situations: Situations) -> None:
    assert situations.said["subprocess"] == "False []\n"
    situations.check("subprocess", 1)


def test_start_and_stop_on_other_threads(situations: Situations) -> None:
    situations.check("threads", 2)


def test_calls_at_the_wrong_moment(situations: Situations) -> None:
    said = situations.said
    assert "step() was called before start()" in said["step before start"]
    assert "stop() was called before start()" in said["stop before start"]
    assert "step() was called after stop()" in said["step after stop"]
    assert "Another stepscope profile is running" in said["a second profile"]
    assert said["start twice"] is not None
    situations.check("calls", 1)


def test_spans_in_the_wrong_order(situations: Situations) -> None:
    situations.check("spans", 1)
    spans = situations.table("spans", "spans")
    names = ("outer", "inner", "left open")
    assert sorted(spans.filter(spans["name"].is_in(names))["name"].cast(str)) == sorted(names)
    losses = situations.table("spans", "losses")["what"].to_list()
    assert {"span_wrong_order", "span_not_closed"} <= set(losses)


def test_spans_in_handlers_and_finalizers(situations: Situations) -> None:
    situations.check("interrupted", 2)
    names = situations.table("interrupted", "spans")["name"].cast(str).to_list()
    assert [names.count(name) for name in ("interrupted", "in __del__", "in a handler of a signal")] == [2, 2, 2]


def test_an_output_that_is_a_file(situations: Situations) -> None:
    assert "taken" in situations.said["an output that is a file"]


def test_an_output_that_holds_a_run(situations: Situations) -> None:
    assert situations.said["the first run stays"]
    assert len(runs(situations.runs / "again")) == 2


def test_a_collector_that_cannot_start(situations: Situations) -> None:
    found = manifest(situations.run("unable"))
    missing = {name: state for name, state in found["collectors"].items() if "cannot start" in str(state)}
    assert len(missing) == 1
    assert found["status"] == "complete"
    assert situations.table("unable", "steps").height == 1
    assert "collector_failed" in situations.table("unable", "losses")["what"].to_list()


def test_a_collector_that_hangs_when_it_stops(situations: Situations) -> None:
    # Given 0.5 s instead of 10: the training goes on, the loss names the collector, and the next recording is whole
    assert situations.said["waited"] < 30
    run = situations.run("hang")
    failed = {name: state["failed"] for name, state in manifest(run)["collectors"].items() if "failed" in state}
    assert [("hung for" in text) for text in failed.values()] == [True]
    losses = situations.table("hang", "losses")
    assert losses.filter(losses["what"] == "collector_failed")["source"].to_list() == list(failed)
    assert situations.table("hang", "steps").height == 1
    situations.check("after", 1)


def test_a_disk_that_fills_up(framework: Framework, tmp_path: Path, output: Path) -> None:
    # Given a limit on the size of files instead of a small disk
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\nimport stepscope\n"
    fills = "\n    for number in range(4000):\n        with stepscope.span(str(number)): pass\n"
    loop = f"{limit}for number in range(30):\n    first(){fills}print('trained')\n"
    path = script(tmp_path, framework.two + loop)
    done = forked_run(output, "-q", "--active", "20", path, cwd=tmp_path)
    # Then it trains to its end, one line says what happened, and what was written can be read
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert len([line for line in done.stderr.splitlines() if "stepscope: " in line]) == 1, done.stderr
    (run,) = runs(output)
    assert manifest(run)["status"] == "incomplete: not everything could be written"
    losses = stepscope.open(run).ranks[0].tables["losses"].collect()["what"].to_list()
    assert {"disk_full", "capture_not_written"} & set(losses)


SET_CLOCK = """
import ctypes, time
import stepscope

def step():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end: first()

step()
with stepscope.profile(output="runs/clock", analyse="later", quiet=True) as recording:
    for number in range(8):
        if number == 4:
            ctypes.CDLL(None).shift(ctypes.c_longlong(3600 * 10**9))
        step()
        recording.step()
recording.recorded[0].wait()
"""


@pytest.mark.slow
def test_the_clock_is_set(framework: Framework, tmp_path: Path, clock: Path) -> None:
    path = script(tmp_path, framework.two + SET_CLOCK)
    done = python(path, cwd=tmp_path, env=environment(LD_PRELOAD=str(clock)), timeout=300)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs" / "clock")
    tables = stepscope.open(run).ranks[0].tables
    losses = tables["losses"].collect()["what"].to_list()
    assert "clock_set" in losses
    steps, spans = tables["steps"].collect(), tables["spans"].collect()
    inside = spans.filter(spans["kind"] == "operator")["step"].drop_nulls()
    if "clock_not_aligned" in losses:  # said, and no step has idle time that was none
        assert steps.height == inside.len() == 0
        return
    # Then every step has its own work, and lasts no longer than before
    assert steps["number"].to_list() == sorted(set(inside.to_list())) == list(range(8))
    assert steps["dur"].max() < 600 * 10**9
