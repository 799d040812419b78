"""A signal that comes in the middle of our work waits for it, and then does what it would have done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from stepscope.collect.session.signals import TerminationGuard, interrupt_postponed


@pytest.fixture
def terminated() -> Iterator[list[str]]:
    """A handler of the program's own for SIGTERM, and what it noted."""
    noted: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: noted.append(f"program {number}"))
    yield noted
    signal.signal(signal.SIGTERM, before)


def test_the_programs_own_handler_comes_after_ours(terminated: list[str]) -> None:
    own = signal.getsignal(signal.SIGTERM)

    def save(name: str, deliver: Callable[[], None]) -> None:
        terminated.append(f"saved by {name}")
        deliver()

    guard = TerminationGuard(save)
    assert guard.install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminated == ["saved by SIGTERM", "program 15"]
    assert signal.getsignal(signal.SIGTERM) is own
    # and from then on it is the program's alone
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminated == ["saved by SIGTERM", "program 15", "program 15"]


def test_a_handler_that_the_program_sets_meanwhile_stays(terminated: list[str]) -> None:
    guard = TerminationGuard(lambda _name, deliver: deliver())
    guard.install()
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)
    # Given a program that chains to what it found: us
    signal.signal(signal.SIGTERM, lambda number, frame: (terminated.append("new"), ours(number, frame)))
    newer = signal.getsignal(signal.SIGTERM)
    guard.remove()
    assert signal.getsignal(signal.SIGTERM) is newer
    os.kill(os.getpid(), signal.SIGTERM)
    assert terminated == ["new", "program 15"]


def test_a_program_that_ignores_the_signal_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        guard = TerminationGuard(lambda _name, deliver: deliver())
        assert not guard.install()
        os.kill(os.getpid(), signal.SIGTERM)
        guard.remove()
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGTERM, before)


def test_nothing_is_installed_from_another_thread(terminated: list[str]) -> None:
    answers: list[bool] = []
    thread = threading.Thread(
        target=lambda: answers.append(TerminationGuard(lambda _name, deliver: deliver()).install())
    )
    thread.start()
    thread.join()
    assert answers == [False]


def test_ctrl_c_waits_until_the_work_is_done() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_ctrl_c_does_not_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_postponed():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("half")
        os.kill(os.getpid(), signal.SIGINT)
        done.append("whole")
    assert done == ["half"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_ctrl_c_nothing_happens() -> None:
    with interrupt_postponed():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
