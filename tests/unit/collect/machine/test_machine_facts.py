"""The machine's facts, against what psutil, the kernel and the interpreter say."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepscope.collect.machine.machine_facts import environment, hardware, interpreter, machine
from tests.unit.collect.conftest import Recording


def test_what_the_machine_has_and_allows() -> None:
    found = machine()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["cpus"] == os.cpu_count()
    assert found["memory_bytes"] == psutil.virtual_memory().total
    limit = found["memory_limit"]
    assert limit is None or limit > 0
    quota = found["cpu_quota"]
    assert quota is None or quota > 0
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert set(found["cpu_features"] or ()) <= set(flags)
    assert "avx2" not in flags or "avx2" in hardware()["cpu_features"]
    assert found["huge_pages"] in (None, "always", "madvise", "never")


def test_fewer_cores_are_fewer() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, before)


def test_variables_that_change_the_speed_are_kept_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("TORCH_API_TOKEN", "hidden")
    monkeypatch.setenv("MY_OWN", "hidden")
    found = environment()
    assert (found["OMP_NUM_THREADS"], found["MALLOC_ARENA_MAX"]) == ("3", "2")
    assert "hidden" not in found.values()


def test_a_profile_of_python_and_a_frozen_heap_are_told() -> None:
    assert interpreter()["profile"] is None
    before = sys.getprofile(), gc.get_freeze_count()

    def watch(*_: Any) -> None:
        """Do nothing."""

    sys.setprofile(watch)
    try:
        found = interpreter()
    finally:
        sys.setprofile(before[0])
    line = watch.__code__.co_firstlineno
    assert (found["profile"]["file"], found["profile"]["line"]) == (__file__, line)
    assert found["gc_threshold"] == list(gc.get_threshold())
    assert found["gc_frozen"] == before[1]


def test_the_collector_writes_them(recording: Recording) -> None:
    from stepscope.collect.machine.machine_facts import MachineCollector

    collector = MachineCollector()
    with recording.of(collector):
        pass
    assert {"machine", "python"} <= recording.read().metadata.keys()
