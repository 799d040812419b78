"""The native recorder and processes that are killed, fork, leave, run for long, or cannot write or build."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch

import stepscope
from stepscope.collect.torch import native_build, recorder_cache
from stepscope.trace.blocks import read_frames
from stepscope.trace.losses import CATALOGUE, LossLedger
from stepscope.trace.recorder_layout import CLOCK, CLOCK_BLOCK, MAGIC, VERSION
from tests.clocks import wait_until
from tests.frameworks.torch.programs import TRAINING, environment, forked, manifest, runs, stepscope_run
from tests.frameworks.torch.recorder_file import read
from tests.sizes import Size
from tests.unit.recorder_build import without

#: A process that imports once, and whose children record until they are killed.
KILLING = (
    TRAINING
    + """
import mmap, pathlib, random, time
import stepscope
torch.set_num_threads(1)
folder, kills = pathlib.Path(sys.argv[1]), int(sys.argv[2])
chance, shared = random.Random(7), mmap.mmap(-1, 8)

def train(number):
    profile = stepscope.profile(
        collector="native", output=folder / f"runs{number}", analyse="later", record_shapes=True
    )
    profile.start()
    while True:
        step()
        shared[:] = time.monotonic_ns().to_bytes(8, "little")

for number in range(kills):
    shared[:] = bytes(8)
    child = os.fork()
    if not child:
        train(number)
    while shared[:] == bytes(8):
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.7))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(int.from_bytes(shared[:], "little"), flush=True)
"""
)


def capture(run: Path) -> Path:
    return run / "rank0" / "capture" / "recorder.ssr"


def test_a_killed_process_loses_at_most_a_second(tmp_path: Path, size: Size) -> None:
    kills = size.many(30)
    done = forked("-c", KILLING, tmp_path, str(kills), timeout=600)
    assert done.returncode == 0, done.stderr
    last_steps = [int(line) for line in done.stdout.split()]
    assert len(last_steps) == kills
    for number, last_step in enumerate(last_steps):
        check_killed(tmp_path / f"runs{number}", last_step)


def check_killed(output: Path, last_step: int) -> None:
    (run,) = runs(output)
    recording = read(capture(run))
    assert not recording.closed
    assert all(loss.what == "block_cut" for loss in recording.losses)
    ends = [operator.end for operator in recording.operators if operator.end]
    first = recording.clocks[0][1]
    # What is written is so behind a second reading of the clocks, without which nobody knows how long a tick is.
    assert len(recording.clocks) >= 2 or not recording.operators
    if not ends:
        assert last_step - first < 1_000_000_000
    else:
        assert last_step - recording.nanoseconds(max(ends)) < 1_000_000_000


LONG = (
    TRAINING
    + """
import time
import stepscope
torch.set_num_threads(1)
profile = stepscope.profile(collector="native", output=sys.argv[1], analyse="later")
with profile:
    for _ in range(60):
        step()
        profile.step()
        time.sleep(0.04)
"""
)


@pytest.mark.parametrize("damage", [0.03, 0.2, 0.5, 0.8, 0.97, "a block", "two blocks"])
def test_a_step_of_a_damaged_recording_is_that_of_the_whole_one(
    damage: float | str, long_recording: Path, tmp_path: Path
) -> None:
    # Given: a recording that is written to the disk five times, of which a part is lost
    whole = step_parts(long_recording)
    assert len(whole) == 60
    run = shutil.copytree(long_recording, tmp_path / "run")
    frames = list(read_frames(capture(run), LossLedger(""), MAGIC, VERSION))
    if isinstance(damage, float):
        content = capture(run).read_bytes()
        capture(run).write_bytes(content[: int(damage * len(content))])
        left = list(read_frames(capture(run), LossLedger(""), MAGIC, VERSION))
        places = list(range(len(left), len(frames)))
    else:
        middle = len(frames) // 2
        places = [middle] if damage == "a block" else [middle - 2, middle + 1]
        without(capture(run), *places).replace(capture(run))
    # Then: a step is the same, or not recorded: what is missing is never idle
    found = step_parts(run)
    assert found == {number: whole[number] for number in found}
    losses = stepscope.open(run).ranks[0].tables["losses"].collect()
    lost = losses.filter(pl.col("what") == "steps_not_recorded")["count"].sum()
    assert len(found) + lost == 60
    assert len(found) < 60
    # and a step of which nothing can be missing is recorded
    assert steps_outside(long_recording, frames, places) <= found.keys()


def steps_outside(run: Path, frames: list[bytes], places: list[int]) -> set[int]:
    """Return the steps that end before, or begin after, all that the blocks at these places may have held.

    A block holds words from the reading of the clocks before it to the second one behind it.
    """
    readings = {n: CLOCK_BLOCK.unpack(f)[3] for n, f in enumerate(frames) if f[:1] == CLOCK and n not in places}
    steps = stepscope.open(run).ranks[0].tables["steps"].collect()
    inside = set()
    for place in places:
        begin = max((at for n, at in readings.items() if n < place), default=0)
        end = sorted((at for n, at in readings.items() if n > place))[1:2]
        touched = (pl.col("ts") + pl.col("dur") > begin) & (pl.col("ts") < (end[0] if end else 2**63 - 1))
        inside |= set(steps.filter(touched)["number"])
    return set(steps["number"]) - inside


@pytest.fixture(scope="module")
def long_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose recording lasts for more than two seconds."""
    folder = tmp_path_factory.mktemp("long")
    done = forked("-c", LONG, folder / "runs")
    assert done.returncode == 0, done.stderr
    (run,) = runs(folder / "runs")
    return run


def step_parts(run: Path) -> dict[int, tuple[float, ...]]:
    """Return the total, computing and idle time of each step of which they are known, in µs, by its number."""
    frame = stepscope.open(run).ranks[0].results["step_trace_time"].drop_nulls("Computing")
    return {row[0]: row[1:] for row in frame.select("Step", "Total", "Computing", "Idle").iter_rows()}


FORKING = (
    TRAINING
    + """
import stepscope
torch.set_num_threads(1)
how = sys.argv[2]
profile = stepscope.profile(collector="native", output=sys.argv[1], analyse="later", profile_memory=True)
profile.start()
for _ in range(5):
    torch.ones(3).add(1)
child = os.fork()
if not child:
    for _ in range(2000):
        torch.ones(3).mul(2)
    if how == "_exit":
        os._exit(7)
    if how == "profiles":
        profile.stop()
        with stepscope.profile(collector="native", output=sys.argv[1] + "-child", analyse="later") as own:
            torch.ones(3).div(2)
        os._exit(0 if own.recorded[0].wait(30) else 1)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if how == "profiles" else 7)
for _ in range(5):
    torch.ones(3).sub(1)
profile.stop()
assert profile.recorded[0].wait(30)
"""
)


@pytest.mark.parametrize("how", ["exit", "_exit", "profiles"])
def test_a_forked_child_records_nothing(how: str, tmp_path: Path) -> None:
    done = forked("-c", FORKING, tmp_path / "runs", how)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    recording = read(capture(run))
    names = [operator.name for operator in recording.operators]
    assert (names.count("aten::add"), names.count("aten::mul"), names.count("aten::sub")) == (5, 0, 5)
    assert recording.closed
    assert not recording.losses
    if how == "profiles":
        (own,) = runs(tmp_path / "runs-child")
        assert [o.name for o in read(capture(own)).operators].count("aten::div") == 1


LEAVING = (
    TRAINING
    + """
import pathlib, stepscope, threading, time
torch.set_num_threads(1)
over, idle = [], []
def work():
    while not over:  # torch itself aborts where a daemon thread is in an operator while Python ends
        torch.ones(3).add(1)
        time.sleep(0.001)
    idle.append(True)
    time.sleep(60)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
profile = stepscope.profile(collector="native", output=sys.argv[1], analyse="later", record_shapes=True)
profile.start()
for _ in range(20):
    step()
from stepscope.read import read_files
def written():
    (file,) = pathlib.Path(sys.argv[1]).rglob("recorder.ssr")
    return file.stat().st_size and read_files([file])["spans"]["name"].cast(str).eq("aten::linear").sum() >= 40
while not written():
    time.sleep(0.05)
over.append(True)
while len(idle) < 3:
    time.sleep(0.01)
"""
)


@pytest.mark.parametrize(
    ("how", "code", "closed"),
    [("", 0, True), ("sys.exit(3)", 3, True), ("os._exit(4)", 4, False), ("raise KeyError(1)", 1, True)],
)
def test_a_process_that_ends_while_it_records(how: str, code: int, closed: bool, tmp_path: Path) -> None:
    done = forked("-c", LEAVING + how, tmp_path / "runs")
    assert done.returncode == code, done.stderr
    (run,) = runs(tmp_path / "runs")
    recording = read(capture(run))
    assert recording.closed == closed
    assert not recording.losses
    assert sum(operator.name == "aten::linear" for operator in recording.operators) == 40


def test_workers_of_a_dataloader_record_nothing_and_data_arrives(tmp_path: Path) -> None:
    code = (
        TRAINING
        + """
import stepscope
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, index): return torch.full((2,), float(index)).cosh()
with stepscope.profile(collector="native", output=sys.argv[1], analyse="later") as profile:
    got = [batch.sum().item() for batch in DataLoader(Data(), batch_size=3, num_workers=2)]
assert len(got) == 4
assert profile.recorded[0].wait(30)
"""
    )
    done = forked("-c", code, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    recording = read(capture(run))
    names = [operator.name for operator in recording.operators]
    assert names.count("aten::sum") == 8  # one calls another
    assert "aten::cosh" not in names
    assert not recording.losses


CYCLES = (
    TRAINING
    + """
import json, shutil, threading, pathlib
from stepscope.collect.torch import native_build as build
from stepscope.native.recorder import NativeRecording
from stepscope.trace.blocks import FrameWriter
from stepscope.trace.recorder_layout import MAGIC
torch.set_num_threads(1)
library = build.load(build.obtain(build.installed(torch)))
path = pathlib.Path(sys.argv[1])
value = torch.ones(4, requires_grad=True)

def cycle():
    FrameWriter(path, MAGIC).close()
    recording = NativeRecording(library, os.open(path, os.O_RDWR | os.O_APPEND))
    recording.begin(inputs=True, memory=True)
    value.mul(2).sum().backward()
    recording.end()
    recording.settle(10)
    recording.close()
    path.unlink()

def state():
    return {"threads": len(os.listdir("/proc/self/task")), "files": len(os.listdir("/proc/self/fd"))}

def memory():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

for _ in range(100):
    cycle()
before, first = state(), memory()
for _ in range(int(sys.argv[2])):
    cycle()
print(json.dumps({"before": before, "after": state(), "growth": memory() - first}))
"""
)


def test_a_thousand_cycles_leave_nothing(tmp_path: Path, size: Size) -> None:
    done = forked("-c", CYCLES, tmp_path / "cycle.ssr", str(size.many(1000)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"] == found["before"]
    assert found["growth"] < 1000 * 1024


def test_a_disk_that_is_full_ends_the_file_and_not_the_training(tmp_path: Path) -> None:
    code = (
        TRAINING
        + """
import resource, stepscope
torch.set_num_threads(1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
profile = stepscope.profile(collector="native", output=sys.argv[1], analyse="later")
profile.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for _ in range(300):
    step()
profile.stop()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
profile.recorded[0].wait(30)
print("trained")
"""
    )
    done = forked("-c", code, tmp_path / "runs")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    (run,) = runs(tmp_path / "runs")
    recording = read(capture(run))
    assert not recording.losses  # whole blocks only
    assert recording.operators
    said = manifest(run)
    assert said["collectors"]["torch"]["dropped"] > 0
    assert "OSError" in said["collectors"]["torch"]["failed"]


def test_chunks_that_the_disk_does_not_take_are_dropped_and_counted(tmp_path: Path) -> None:
    # Given a disk that stands still for a while: the file is a pipe that nobody reads
    code = (
        TRAINING
        + """
import threading
from stepscope.collect.torch import native_build as build
from stepscope.native.recorder import NativeRecording
torch.set_num_threads(1)
library = build.load(build.obtain(build.installed(torch)))
step()
reader, writer = os.pipe()
recording = NativeRecording(library, writer, memory=2 << 20)
recording.begin(inputs=False, memory=False)
for _ in range(2500):
    step()
recording.end()
content = []
drain = threading.Thread(target=lambda: content.extend(iter(lambda: os.read(reader, 1 << 16), b"")))
drain.start()
recording.settle(20)
print(recording.lost)
recording.close()
drain.join()
from stepscope.trace.blocks import FrameWriter
from stepscope.trace.recorder_layout import MAGIC
import pathlib
path = pathlib.Path(sys.argv[1])
FrameWriter(path, MAGIC).close()
with path.open("ab") as file:
    file.write(b"".join(content))
"""
    )
    done = forked("-c", code, tmp_path / "slow.ssr")
    assert done.returncode == 0, done.stderr
    recording = read(tmp_path / "slow.ssr")
    assert not recording.losses
    lost, found = int(done.stdout), len(recording.operators)
    assert lost > 0
    assert "operators_dropped" in CATALOGUE
    # The same step again and again: what is there and what was dropped is everything
    assert (lost + found) % 2500 == 0


FALLBACK = (
    TRAINING
    + """
import stepscope
with stepscope.profile(collector="native", output=sys.argv[1], analyse="later") as profile:
    step()
assert profile.recorded[0].wait(30)
"""
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"STEPSCOPE_NATIVE": "0"}, "switched off"),
        ({"PATH": "/nonexistent", "CXX": ""}, "no C++ compiler"),
        ({"CXX": "/bin/false"}, "false fails"),
    ],
)
def test_without_a_recorder_kineto_serves_and_it_is_said(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    done = forked("-c", FALLBACK, tmp_path / "runs", env=environment(XDG_CACHE_HOME=str(tmp_path / "cache"), **changes))
    assert done.returncode == 0, done.stderr
    assert reason in done.stderr
    (run,) = runs(tmp_path / "runs")
    state = manifest(run)["collectors"]["torch"]
    assert state["recorder"] == "kineto"
    assert reason in state["native"]
    assert (run / "rank0" / "capture" / "kineto_0.json").exists()


@pytest.mark.slow
def test_a_library_that_was_cut_costs_no_training_and_is_built_again(tmp_path: Path) -> None:
    """Given a cache whose library is shorter than it was built: to load it would end the process by SIGBUS."""
    library = native_build.obtain(native_build.installed(torch))
    cache = Path(shutil.copytree(library.parent, tmp_path / "cache" / "stepscope"))
    recorder_cache.open_directory(cache)
    size = library.stat().st_size
    os.truncate(cache / library.name, 5_000)
    program = tmp_path / "train.py"
    program.write_text(TRAINING + "for _ in range(12):\n    step()\nprint('trained')\n")
    done = stepscope_run(tmp_path / "runs", program, env=environment(XDG_CACHE_HOME=str(cache.parent)))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert stepscope.open(tmp_path / "runs").tables["operators"].collect().height
    wait_until(lambda: (cache / library.name).stat().st_size == size, 300)
    assert recorder_cache.fault(cache / library.name) is None
