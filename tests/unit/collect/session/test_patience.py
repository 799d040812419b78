"""A collector that hangs costs the training a bounded time, and one that works is left alone."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope
from stepscope.collect.host.host_counters import HostCollector
from stepscope.collect.session import window
from stepscope.collect.session.patience import CollectorHangs, Patience
from stepscope.run import Run

#: Waits of all kinds, each much longer than the test's patience.
WAITS: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(60),
    "lock": lambda: (lock := threading.Lock()).acquire() and lock.acquire(),
    "event": lambda: threading.Event().wait(60),
    "process": lambda: subprocess.run(["sleep", "60"], check=False),
    "thread": lambda: _sleeper().join(),
}


def _sleeper() -> threading.Thread:
    thread = threading.Thread(target=time.sleep, args=(3,), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("wait", WAITS)
def test_a_call_that_waits_for_ever_is_interrupted(wait: str) -> None:
    begun = time.monotonic()
    with Patience(0.5) as patience:
        with pytest.raises(CollectorHangs, match="hung"):
            patience.call(WAITS[wait])
        assert patience.call(lambda: 4) == 4  # and the next call works
    assert time.monotonic() - begun < 10
    assert signal.getsignal(signal.SIGRTMAX) is signal.SIG_DFL


def test_a_call_that_works_for_long_is_left_alone() -> None:
    def work() -> int:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            sum(range(1000))
        return 4

    with Patience(0.5) as patience:
        assert patience.call(work) == 4


def test_a_signal_that_the_program_uses_is_not_taken() -> None:
    before = signal.signal(signal.SIGRTMAX, lambda *_: None)
    mine = signal.getsignal(signal.SIGRTMAX)
    try:
        with Patience(0.1) as patience:
            assert patience.call(lambda: signal.getsignal(signal.SIGRTMAX)) is mine
        assert signal.getsignal(signal.SIGRTMAX) is mine
    finally:
        signal.signal(signal.SIGRTMAX, before)


@pytest.mark.parametrize("method", ["prepare", "start", "stop"])
def test_a_collector_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(window, "OPENING" if method != "stop" else "CLOSING", 0.5)
    original = getattr(HostCollector, method)
    monkeypatch.setattr(HostCollector, method, lambda *given: (original(*given), time.sleep(60)))
    begun = time.monotonic()
    with stepscope.profile(output=tmp_path, analyse="later", quiet=True) as profile:
        profile.step()
    assert time.monotonic() - begun < 20
    profile.recorded[0].wait()
    rank = Run(profile.recorded[0].path).ranks[0]
    assert "hung for" in rank.manifest["collectors"]["host"]["failed"]
    losses = rank.tables["losses"].collect().filter(what="collector_failed").to_dicts()
    assert [(loss["source"], loss["count"]) for loss in losses] == [("host", 1)]
    assert rank.tables["steps"].collect().height == 1
