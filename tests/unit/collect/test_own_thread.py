"""A thread of our own works, ends, and is not seen by the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stepscope import native
from stepscope.collect.own_thread import OwnThread
from tests.frameworks.left_behind import own_threads

SHORT = 0.005


@pytest.fixture(autouse=True, params=["in C", "in Python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "in Python":
        monkeypatch.setattr(native, "loaded", lambda: None)
    elif native.available():
        pytest.skip(f"the C library is {native.available()}")
    yield request.param
    assert "stepscope-test" not in own_threads()


def test_it_works_until_it_is_stopped_and_then_a_last_time(kind: str) -> None:
    calls: list[tuple[bool, bool, int]] = []
    enough = threading.Event()

    def work(last: bool) -> float:
        calls.append((last, thread.here, threading.get_native_id()))
        if len(calls) == 5:
            enough.set()
        return SHORT

    thread = OwnThread("stepscope-test", work)
    assert thread.stop(1)
    thread.start(SHORT)
    assert enough.wait(10)
    assert kind == "in Python" or own_threads().count("stepscope-test") == 1
    assert not thread.here
    assert thread.stop(10)
    assert thread.stop(10)
    assert [last for last, _, _ in calls] == [False] * (len(calls) - 1) + [True]
    assert all(here for _, here, _ in calls)
    assert len({number for _, _, number in calls}) == 1
    assert threading.get_native_id() not in {number for _, _, number in calls}


def test_it_ends_without_a_last_call_if_none_is_asked_for() -> None:
    calls: list[bool] = []
    thread = OwnThread("stepscope-test", lambda last: calls.append(last) or 60.0)
    thread.start(60)
    assert thread.stop(10, last=False)
    assert calls == []


def test_work_that_ends_it_is_not_called_again(kind: str) -> None:
    calls: list[bool] = []

    def work(last: bool) -> float:
        calls.append(last)
        return 0

    thread = OwnThread("stepscope-test", work)
    thread.start(SHORT)
    deadline = time.monotonic() + 10
    while not calls and time.monotonic() < deadline:
        time.sleep(SHORT)
    assert thread.stop(10)
    assert calls == [False], kind


def test_work_that_hangs_is_waited_for_no_longer_than_asked(kind: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(_last: bool) -> float:
        begun.set()
        go_on.wait()
        return SHORT

    thread = OwnThread("stepscope-test", work)
    thread.start(SHORT)
    assert begun.wait(10)
    assert not thread.stop(SHORT), kind
    go_on.set()
    assert thread.stop(10)


def test_it_may_stop_itself() -> None:
    done = threading.Event()

    def work(last: bool) -> float:
        assert last or not thread.stop(10)
        done.set()
        return SHORT

    thread = OwnThread("stepscope-test", work)
    thread.start(SHORT)
    assert done.wait(10)
    assert thread.stop(10)


def test_python_does_not_know_it_while_it_waits(kind: str) -> None:
    if kind == "in Python":
        pytest.skip("a thread of Python's is known to Python")
    before, frames = threading.enumerate(), set(sys._current_frames())
    called = threading.Event()
    thread = OwnThread("stepscope-test", lambda _last: called.set() or 60.0)
    thread.start(SHORT)
    assert called.wait(10)
    deadline = time.monotonic() + 10
    while set(sys._current_frames()) != frames and time.monotonic() < deadline:
        time.sleep(SHORT)  # it is on its way back to C
    assert set(sys._current_frames()) == frames
    assert threading.enumerate() == before
    assert thread.stop(10)


def test_a_fork_has_no_such_thread_and_waits_for_none(kind: str) -> None:
    thread = OwnThread("stepscope-test", lambda _last: 60.0)
    thread.start(60)
    child = os.fork()
    if not child:
        os._exit(0 if thread.stop(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, kind
    assert thread.stop(10)


@pytest.mark.parametrize("work", ["time.sleep(0.001) or 0.001", "time.sleep(30) or 1", "sum(range(10**6)) and 0.0001"])
def test_a_process_ends_while_it_works(work: str) -> None:
    code = f"""
import time
from stepscope.collect.own_thread import OwnThread
from tests.frameworks.left_behind import own_threads
threads = [OwnThread("stepscope-test", lambda last: {work}) for _ in range(4)]
for thread in threads:
    thread.start(0.001)
time.sleep(0.1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
