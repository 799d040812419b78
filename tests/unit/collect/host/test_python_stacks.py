"""Python calls as nested spans: the right ones, on their threads, and nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.collect.host import python_stacks
from stepscope.collect.host.python_stacks import PythonStacksCollector
from stepscope.collect.journal.block_file import BlockFile
from stepscope.collect.journal.journal import Journal
from stepscope.read import read_files
from stepscope.read.common.torch_events import parse_frame
from stepscope.read.journal.journal_reader import read
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import Frames
from tests.clocks import wait_until
from tests.unit.collect.conftest import Recording

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have imported it; where it is, the collector leaves the stacks to it."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


class Window:
    """A window of the collector alone."""

    def __init__(self, recording: Recording) -> None:
        self.collector = PythonStacksCollector()
        self.recording = recording
        self.path = recording.context.capture / "python_stacks.ssj"

    def __enter__(self) -> Window:
        assert self.collector.available() is None
        self.collector.prepare(self.recording.context)
        self.collector.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.collector.stop() == [self.path]

    def frames(self) -> Frames:
        self.recording.journal.close()
        return read_files([self.path, self.recording.journal.path])

    def calls(self) -> list[dict[str, Any]]:
        """Calls of functions of this file, in order of start, with file, line, function, and caller's function."""
        spans = {row["id"]: {**row, **parse_frame(row["name"])} for row in self.frames()["spans"].to_dicts()}
        for span in spans.values():
            span["caller"] = spans[span["parent"]]["function"] if span["parent"] is not None else None
        return [span for span in spans.values() if span["file"].endswith(HERE)]


@pytest.fixture
def window(recording: Recording) -> Window:
    return Window(recording)


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def outer() -> None:
    inner(0.004)
    spin(0.002)


def inner(seconds: float) -> None:
    spin(seconds)


def named(calls: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [call for call in calls if call["function"] == name]


def test_calls_are_nested_with_file_line_and_duration(window: Window) -> None:
    with window:
        outer()
    calls = window.calls()
    (first,), (second,) = named(calls, "outer"), named(calls, "inner")
    assert (first["line"], second["line"]) == (outer.__code__.co_firstlineno, inner.__code__.co_firstlineno)
    assert first["kind"] == "python"
    assert second["caller"] == "outer"
    assert [call["caller"] for call in named(calls, "spin")] == ["inner", "outer"]
    assert 4_000_000 <= second["dur"] < first["dur"]
    assert first["dur"] >= 6_000_000


def test_a_call_has_the_line_that_calls_it(window: Window) -> None:
    def waits() -> Iterator[None]:
        spin(0.003)
        yield
        spin(0.004)

    with window:
        outer()
        for _ in waits():
            inner(
                0.005,
            )
    lines = Path(__file__).read_text().splitlines()
    calls = read(window.path, LossLedger("x"))["spans"].cast({"name": pl.String}).select("name", "calling_line").rows()
    found = [(parse_frame(name)["function"], line and lines[line - 1].strip()) for name, line in calls if HERE in name]
    waits_name = waits.__qualname__
    assert sorted(call for call in found if call[0] in ("outer", "inner", "spin", waits_name)) == sorted([
        ("outer", "outer()"), ("inner", "inner(0.004)"), ("spin", "spin(seconds)"), ("spin", "spin(0.002)"),
        (waits_name, "for _ in waits():"), ("spin", "spin(0.003)"), ("inner", "inner("), ("spin", "spin(seconds)"),
        (waits_name, "for _ in waits():"), ("spin", "spin(0.004)"),
    ])  # fmt: skip


def test_what_is_going_on_when_the_window_opens_and_closes_is_there(window: Window) -> None:
    with window:
        spin(0.001)
    calls = window.calls()
    test = named(calls, "test_what_is_going_on_when_the_window_opens_and_closes_is_there")
    assert len(test) == 1
    assert named(calls, "spin")[0]["caller"] == test[0]["function"]
    assert test[0]["dur"] >= named(calls, "spin")[0]["dur"]


def test_our_own_functions_are_not_there(window: Window) -> None:
    with window:
        window.collector.describe()
        Journal.counter(window.recording.journal, "x", 1.0)
    assert not window.frames()["spans"].cast({"name": str})["name"].str.contains("stepscope/collect").any()


def test_an_exception_a_generator_and_recursion_keep_the_nesting(window: Window) -> None:
    def raises() -> None:
        spin(0.001)
        raise KeyError

    def generates() -> Iterator[int]:
        spin(0.001)
        yield 1
        spin(0.001)

    def recurses(depth: int) -> None:
        spin(0.0002)
        if depth:
            recurses(depth - 1)

    with window:
        with pytest.raises(KeyError):
            raises()
        list(generates())
        recurses(20)
        outer()
    calls = window.calls()
    assert len([call for call in calls if call["function"].endswith("recurses")]) == 21
    depths = [call["depth"] for call in calls if call["function"].endswith("recurses")]
    assert depths == list(range(depths[0], depths[0] + 21))
    assert len([call for call in calls if call["function"].endswith("generates")]) == 2
    assert named(calls, "outer")[0]["depth"] == depths[0]


def test_threads_that_begin_in_the_window_have_their_own_track(window: Window) -> None:
    with window:
        thread = threading.Thread(target=outer, name="worker")
        thread.start()
        thread.join()
    frames = window.frames()
    tracks = frames["tracks"].filter(frames["tracks"]["name"] == "worker")
    assert tracks["thread"].to_list() == [thread.native_id]
    spans = frames["spans"].filter(frames["spans"]["track"] == tracks["id"][0])["name"].cast(str).to_list()
    assert any("outer" in name for name in spans)


def test_a_thread_that_outlives_the_window_loses_its_hook(window: Window) -> None:
    go_on, seen, turns = threading.Event(), [], [0]

    def works() -> None:
        while not go_on.is_set():
            inner(0.001)
            turns[0] += 1
        seen.append(sys.getprofile())

    with window:
        thread = threading.Thread(target=works)
        thread.start()
        wait_until(lambda: turns[0] > 5)
    inner(0.01)
    go_on.set()
    thread.join()
    assert seen == [None]
    ends = [call["ts"] + call["dur"] for call in named(window.calls(), "inner")]
    assert len(ends) > 5


def test_the_programs_own_profile_function_is_respected(recording: Recording) -> None:
    def own(frame: object, event: str, argument: object) -> None:
        return None

    sys.setprofile(own)
    try:
        reason = PythonStacksCollector().available()
        late = PythonStacksCollector()
        late.prepare(recording.context)
        late.start()
        assert sys.getprofile() is own
        late.stop()
    finally:
        sys.setprofile(None)
    assert reason is not None
    assert "its own profile function" in reason
    assert "its own profile function" in str(late.describe()["note"])


def test_a_profile_function_set_in_the_window_stays(window: Window) -> None:
    def own(frame: object, event: str, argument: object) -> None:
        return None

    try:
        with window:
            outer()
            sys.setprofile(own)
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert "Python calls are recorded up to it" in str(window.collector.describe()["note"])
    assert len(named(window.calls(), "outer")) == 1


def test_nothing_stays_installed(window: Window) -> None:
    with window:
        assert sys.getprofile() is not None
    assert sys.getprofile() is None
    assert threading.getprofile() is None


def test_short_calls_are_counted(window: Window) -> None:
    def nothing() -> None:
        pass

    with window:
        for _ in range(10_000):
            nothing()
    kept = len([call for call in window.calls() if call["function"].endswith("nothing")])
    assert window.collector.describe()["shorter"] + kept >= 10_000
    assert window.collector.describe()["shorter"] > 5_000


@pytest.mark.slow
def test_a_million_calls_are_written_or_counted(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: calls as fast as Python makes them, of which none is too short to keep
    monkeypatch.setattr(python_stacks, "SHORTEST", 0)

    def nothing() -> None:
        pass

    with window:
        for _ in range(1_000_000):
            nothing()
        # (the window's end waits some seconds for the writing; a machine whose cores are taken needs longer)
        written = -10_000
        while written + 10_000 <= (written := window.path.stat().st_size):
            time.sleep(1)
    frames = window.frames()
    names = frames["spans"]["name"].cast(str)
    kept = names.str.ends_with("nothing").sum()
    losses = dict(frames["losses"].select("what", "count").iter_rows())
    assert kept + losses.get("python_calls_overflow", 0) >= 1_000_000
    assert kept <= 1_000_000
    assert kept >= 500_000
    assert window.path.stat().st_size < 40 * kept


def test_a_full_queue_is_counted(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_stacks, "ROOM", 10)
    with window:
        for _ in range(20):
            inner(0.0001)
    losses = dict(window.frames()["losses"].select("what", "count").iter_rows())
    assert losses["python_calls_overflow"] >= 20


def test_a_disk_that_hangs_costs_no_count(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    close = BlockFile.close

    def hangs(file: BlockFile) -> None:
        close(file)
        raise TimeoutError

    monkeypatch.setattr(BlockFile, "close", hangs)
    monkeypatch.setattr(python_stacks, "ROOM", 10)
    with pytest.raises(TimeoutError), window:
        for _ in range(20):
            inner(0.0001)
    losses = dict(window.frames()["losses"].select("what", "count").iter_rows())
    assert losses["python_calls_overflow"] >= 20


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_no_hook(window: Window) -> None:
    with window:
        child = os.fork()
        if child == 0:
            os._exit(0 if sys.getprofile() is None else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0


def test_stopped_by_another_thread_all_calls_are_there(window: Window) -> None:
    window.__enter__()
    outer()
    thread = threading.Thread(target=window.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    inner(0.001)
    assert sys.getprofile() is None
    calls = window.calls()
    assert len(named(calls, "outer")) == 1
    assert named(calls, "inner")[0]["caller"] == "outer"


def test_with_torch_it_steps_aside() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = (
        "import torch; from stepscope.collect.host.python_stacks import PythonStacksCollector as Collector; "
        "print(Collector().available())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "torch records its Python stacks itself\n"
