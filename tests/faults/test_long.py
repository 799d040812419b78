"""Long jobs, large recordings, and two readers at once (docs/reliability.md)."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from tests.conftest import files_in
from tests.frameworks.torch.programs import environment, python, runs

#: Steps of a day, 20 ms each, of which 40 windows record some.
DAY = 24 * 3600 * 50
WINDOWS = 40

A_DAY = """
import ctypes, json, os, sys, threading, time
import stepscope

SIZES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in SIZES.split()]

libc, began = ctypes.CDLL(None), time.monotonic()
libc.mallinfo2.restype = Heap

def state():
    # A thousand steps of a day end in the time of one here: what waits to be written is written first, a hundredth of
    # the run's time after the block before; the memory it needed, which malloc keeps free, is not counted.
    time.sleep(0.7 + (time.monotonic() - began) / 100)
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident - libc.mallinfo2().fordblks, len(os.listdir("/proc/self/fd")), threading.active_count()

steps, windows = int(sys.argv[2]), int(sys.argv[3])
schedule = stepscope.schedule(wait=steps // windows - 5, warmup=0, active=5)
profile = stepscope.profile(schedule=schedule, output=sys.argv[1], analyse="later", quiet=True)
profile.start()
states = []
for number in range(steps):
    if number % (steps // 8) == 0 and number:
        states.append(state())
    profile.step()
profile.stop()
first, second = (list(map(max, zip(*half))) for half in (states[:4], states[4:]))
print(json.dumps([after - before for before, after in zip(first, second)]))
"""


@pytest.mark.slow
def test_a_day_of_steps_stays_small(tmp_path: Path) -> None:
    command = ["-c", A_DAY, tmp_path / "runs", str(DAY), str(WINDOWS)]
    done = python(*command, env=environment(PYTHONMALLOC="malloc"), timeout=580)  # so that malloc knows all memory
    assert done.returncode == 0, done.stderr
    grown, files, threads = json.loads(done.stdout)
    assert grown < 4 << 20
    assert files <= 2  # those of a window that is closing
    assert threads <= 1
    recorded = runs(tmp_path / "runs")
    assert len(recorded) == WINDOWS
    # Every run has the file of the times of all steps, which is one file.
    written = sum({file.stat().st_ino: file.stat().st_size for run in recorded for file in files_in(run)}.values())
    assert written < 20 * DAY  # bytes


MILLIONS = """
import sys, torch
import stepscope
torch.set_num_threads(1)
value, first = torch.ones(4), torch.zeros(1, dtype=torch.long)
with stepscope.profile(collector="native", output=sys.argv[1], analyse="later", quiet=True) as profile:
    for step in range(100):
        for _ in range(int(sys.argv[2]) // 100):
            torch.neg(value)
            torch.index_select(value, 0, first)
            torch.sum(value).item()
        profile.step()
profile.recorded[0].wait(60)
"""


@pytest.mark.slow
def test_ten_million_events_are_read_in_bounded_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    count, each = 1_120_000, 9  # operators of one round: those of the program and those inside them
    done = python("-c", MILLIONS, tmp_path / "runs", str(count), timeout=580)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    read = python("-m", "stepscope", "report", run, "--quiet", timeout=580)
    assert read.returncode == 0, read.stderr
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert max(peak, before) < 4 << 20  # KiB
    statistic = stepscope.open(run).ranks[0].result("op_statistic")
    calls = dict(statistic.select("OP Type", "Count").iter_rows())  # type: ignore[union-attr]
    assert calls["aten::neg"] == calls["aten::index_select"] == calls["aten::item"] == count
    assert sum(calls.values()) >= each * count > 10_000_000


@pytest.mark.slow
def test_two_readers_at_once_write_the_same(tmp_path: Path) -> None:
    with stepscope.profile(output=tmp_path / "runs", analyse="later", quiet=True) as profile:
        for number in range(500):
            with stepscope.span(f"work {number % 7}"):
                pass
            profile.step()
    profile.recorded[0].wait(30)
    run = profile.recorded[0].path
    command = [sys.executable, "-m", "stepscope", "report", str(run), "--quiet"]
    started = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) for _ in range(3)]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    rank = run / "rank0"
    contents = {file.name: file.read_bytes() for file in files_in(rank / "results")}
    for file in [*files_in(rank / "tables"), *files_in(rank / "results")]:
        file.unlink()
    assert subprocess.run(command, env=environment(), check=False).returncode == 0
    assert {file.name: file.read_bytes() for file in files_in(rank / "results")} == contents
    assert not [file for file in rank.rglob(".*") if file.suffix in (".tmp", ".parquet")]
