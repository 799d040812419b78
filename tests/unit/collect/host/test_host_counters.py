"""Counters of the process and its machine, against what the machine itself says."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepscope.collect.host import host_counters, sampling
from stepscope.collect.host.host_counters import HostCollector
from stepscope.collect.options import Options
from tests.clocks import wait_until
from tests.frameworks.left_behind import own_threads
from tests.unit.collect.conftest import Recording
from tests.unit.collect.reading import Read

UNITS = {
    "process CPU": "%",
    "process memory": "bytes",
    "process threads": "",
    "system CPU": "%",
    "other CPU": "%",
    "system memory used": "bytes",
    "disk read": "bytes/s",
    "disk written": "bytes/s",
    "network received": "bytes/s",
    "network sent": "bytes/s",
}


def by_name(found: Read) -> dict[str, list[dict[str, Any]]]:
    samples = defaultdict(list)
    for row in found.counters:
        samples[row["name"]].append(row)
    return samples


def busy_share(before: Any, after: Any) -> float:
    """Return the share of all cores that was neither idle nor waiting for disks, in %."""
    idle = after.idle + after.iowait - before.idle - before.iowait
    return 100 - 100 * idle / (sum(after[:8]) - sum(before[:8]))


def share_over_time(rows: list[dict[str, Any]]) -> float:
    """Return the mean of a rate over the time of its samples: each holds since the one before it."""
    passed = [later["ts"] - earlier["ts"] for earlier, later in pairwise(rows)]
    return sum(row["value"] * ns for row, ns in zip(rows[1:], passed, strict=True)) / sum(passed)


def sampled(collector: HostCollector, samples: int) -> None:
    """Wait until the collector has so many samples."""
    wait_until(lambda: collector.describe()["samples"] >= samples)  # type: ignore[operator]


def test_every_counter_is_sampled_with_its_unit(recording: Recording) -> None:
    collector = HostCollector()
    with recording.of(collector):
        sampled(collector, 2)
    samples = by_name(recording.read())
    assert {name: rows[0]["unit"] for name, rows in samples.items()} == UNITS
    assert all(row["lane"] == name for name, rows in samples.items() for row in rows)


def test_often_and_seldom(recording: Recording) -> None:
    # Given: 50 samples a second; then: at most so many of the cheap ones, and a tenth of the others
    collector = HostCollector()
    begin = time.perf_counter()
    with recording.of(collector):
        sampled(collector, 25)
    periods = (time.perf_counter() - begin) * 50
    samples = by_name(recording.read())
    assert 25 <= len(samples["process CPU"]) <= periods + 1
    assert 2 <= len(samples["disk read"]) <= periods / 10 + 4
    assert len(samples["disk read"]) < len(samples["process CPU"])
    described = collector.describe()
    assert described["samples"] in (len(samples["process CPU"]), len(samples["process CPU"]) + 1)
    assert described["period_ms"] == 20
    assert isinstance(described["sample_cost_ns"], int)
    assert 0 < described["sample_cost_ns"] < 20_000_000


def test_values_agree_with_the_process(recording: Recording) -> None:
    # Given: a process that computes on one thread all the time, with 3 more threads that wait
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with recording.of(HostCollector()):
        cpu, begin, before = time.process_time(), time.perf_counter(), psutil.cpu_times()
        while time.perf_counter() < begin + 0.4 or time.process_time() < cpu + 0.3:
            pass
        used = (time.process_time() - cpu) / (time.perf_counter() - begin) * 100
        busy = busy_share(before, psutil.cpu_times())
        memory, count = psutil.Process().memory_info().rss, psutil.Process().num_threads()
    end.set()
    for thread in threads:
        thread.join()
    samples = by_name(recording.read())
    assert share_over_time(samples["process CPU"]) == pytest.approx(used, abs=25)
    assert samples["process memory"][-1]["value"] == pytest.approx(memory, rel=0.05)
    assert samples["process threads"][-1]["value"] == count
    machine = [row["value"] for row in samples["system CPU"]]
    assert all(0 <= share <= 100 for share in machine)
    assert share_over_time(samples["system CPU"]) == pytest.approx(busy, abs=25)
    total = psutil.virtual_memory().total
    assert all(0 < row["value"] < total for row in samples["system memory used"])


def test_written_bytes_are_a_rate(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: a machine whose disks write 1 MB between any two readings
    class Totals:
        read_bytes = 500
        write_bytes = 0

    def count() -> Totals:
        Totals.write_bytes += 1_000_000
        return Totals()

    monkeypatch.setattr(psutil, "disk_io_counters", count)
    collector = HostCollector()
    with recording.of(collector):
        wait_until(lambda: Totals.write_bytes >= 7e6)  # two readings are of before the first sample
    samples = by_name(recording.read())
    for before, after in zip(samples["disk written"], samples["disk written"][1:], strict=False):
        assert after["value"] == pytest.approx(1e6 / ((after["ts"] - before["ts"]) / 1e9), rel=1e-6)
    assert len(samples["disk written"]) >= 3
    assert {row["value"] for row in samples["disk read"]} == {0.0}


def test_a_window_shorter_than_the_period_has_one_sample(tmp_path: Path) -> None:
    recording = Recording(tmp_path, Options(counters_hz=0.1))
    with recording.of(HostCollector()):
        time.sleep(0.02)
    samples = by_name(recording.read())
    assert {name: len(rows) for name, rows in samples.items()} == dict.fromkeys(UNITS, 1)


def test_zero_hertz_turns_it_off(tmp_path: Path) -> None:
    recording = Recording(tmp_path, Options(counters_hz=0))
    before = threading.active_count()
    with recording.of(HostCollector()):
        assert threading.active_count() == before
    assert recording.read().counters == []


def test_a_counter_the_machine_refuses_is_named(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", "/proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", refuse)
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    collector = HostCollector()
    with recording.of(collector):
        sampled(collector, 2)
    assert set(by_name(recording.read())) == {name for name in UNITS if not name.startswith(("disk", "network"))}
    missing = collector.describe()["missing"]
    assert isinstance(missing, dict)
    assert "Permission denied" in missing["disk"]
    assert missing["network"] == "OSError: This machine shows no network."


def test_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "psutil")
    monkeypatch.setattr(sys, "path", [])
    assert "pip install psutil" in str(HostCollector().available())


def test_a_reading_that_hangs_does_not_hang_stop(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: readings that hang
    stuck, go_on, here = threading.Event(), threading.Event(), threading.get_ident()

    def hang() -> int:
        if threading.get_ident() != here:
            stuck.set()
            go_on.wait(30)
        return 0

    monkeypatch.setattr(host_counters, "process_time_ns", hang)
    monkeypatch.setattr(sampling, "PATIENCE", 0.1)
    collector = HostCollector()
    collector.prepare(recording.context)
    collector.start()
    stuck.wait(10)
    assert "stepscope-host" in own_threads()
    with pytest.raises(TimeoutError, match="longer than"):
        collector.stop()
    go_on.set()
    wait_until(lambda: "stepscope-host" not in own_threads())
    assert recording.read().counters == []


def test_stop_without_start() -> None:
    assert HostCollector().stop() == []
