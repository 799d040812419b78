"""Programs with many threads are recorded without the crashes of Paddle's recorder, and no event is lost."""

from __future__ import annotations

import mmap
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.collect.surgery import verified
from stepscope.collect.surgery.paddle_threads import ENOUGH_NS, SLOT, ThreadBuffers, wait_until_past, words
from stepscope.collect.surgery.paddle_tracer import Tracer, log_severity, recording_switch
from tests.frameworks.paddle.programs import counts
from tests.frameworks.torch.programs import manifest, runs

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

#: Three threads that never stop computing, while windows open and close for as long as the argument says.
COMPUTE = """
import sys, threading, time
import paddle
from stepscope.collect.surgery.paddle_tracer import Tracer

done = threading.Event()


def compute():
    x = paddle.ones([4])
    while not done.is_set():
        x + x


threads = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
end, windows = time.monotonic() + float(sys.argv[1]), 0  # those that hold something
while time.monotonic() < end:
    tracer = Tracer(memory=windows % 2 == 0)
    tracer.start()
    time.sleep(0.0005)
    windows += bool(tracer.stop().get_data())
done.set()
for thread in threads:
    thread.join()
print(windows)
"""


#: The same with a build that was not verified.
UNVERIFIED = "from stepscope.collect.surgery import verified\nverified.BUILDS = ()\n" + COMPUTE


@pytest.mark.slow
@pytest.mark.parametrize("program", [COMPUTE, UNVERIFIED], ids=["verified", "unverified"])
def test_windows_open_and_close_while_threads_compute(program: str) -> None:
    # Paddle's own profiler, and a recorder that only waits some ms before it collects, crash within seconds here
    command = [sys.executable, "-W", "ignore", "-c", program, "12"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 50


def operators(result: Any) -> Counter[str]:
    """Count what was recorded by name."""
    found: Counter[str] = Counter()
    todo = list(result.get_data().values())
    while todo:
        node = todo.pop()
        todo += node.children_node
        found[node.name] += 1
    return found


@pytest.fixture
def tracer() -> Tracer:
    found = Tracer(memory=False)
    assert found.limits == []
    return found


class Computing:
    """Threads that each compute once, and then live until the end of a ``with``."""

    def __init__(self, number: int) -> None:
        self.end = threading.Event()
        self.computed = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self.compute) for _ in range(number)]

    def compute(self) -> None:
        paddle.ones([4]).sin()
        self.computed.release()
        self.end.wait()

    def __enter__(self) -> None:
        for thread in self.threads:
            thread.start()
            assert self.computed.acquire(timeout=30)

    def __exit__(self, *_: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


def _slots(buffers: ThreadBuffers) -> tuple[int, int]:
    begin, end, _ = buffers.vector
    return begin, end


def _cut_off(buffers: ThreadBuffers) -> None:
    """Set the vector's end as a thread does that reads it, is suspended, and writes it back after another thread."""
    begin, end, limit = buffers.vector
    buffers.vector[:] = [begin, end - SLOT, limit]


def _written_over(buffers: ThreadBuffers) -> None:
    """Do what two threads do that write their buffers to the same index of the vector."""
    _, end = _slots(buffers)
    size = SLOT
    for address in (end - 2 * size, end - size):
        words(address)[:] = [0, 0] if address == end - size else list(_last(end))
    _cut_off(buffers)


def _last(end: int) -> Any:
    return words(end - SLOT)


@pytest.mark.parametrize("damage", [_cut_off, _written_over], ids=lambda damage: damage.__name__)
def test_threads_that_begin_to_record_at_once_are_both_there(damage: Any, tracer: Tracer) -> None:
    buffers = recording_switch().buffers[0]
    tracer.start()
    with Computing(3):
        damage(buffers)
        found = operators(tracer.stop())
    assert found["sin dygraph"] == 3
    # and the next window has each of them once
    again = Tracer(memory=False)
    again.start()
    with Computing(3):
        pass
    assert operators(again.stop())["sin dygraph"] == 3


def test_threads_that_have_ended_are_there(tracer: Tracer) -> None:
    tracer.start()
    with Computing(40):
        pass
    assert operators(tracer.stop())["sin dygraph"] == 40


def test_the_list_of_threads_never_moves_while_paddle_records(tracer: Tracer) -> None:
    buffers = recording_switch().buffers[0]
    tracer.start()
    begin, end = _slots(buffers)
    with Computing(40):
        assert _slots(buffers) == (begin, end + 40 * SLOT)
    tracer.stop()


def test_a_thread_that_computes_is_waited_for() -> None:
    end = threading.Event()
    passed = []

    def compute() -> None:
        while not end.is_set():
            passed.append(time.thread_time_ns())

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        while not passed:
            time.sleep(0.001)
        before = passed[-1]
        assert wait_until_past(30)
        assert passed[-1] - before > ENOUGH_NS / 2
        # and a wait that is given up returns False
        assert not wait_until_past(-1)
    finally:
        end.set()
        thread.join()


def test_threads_that_sleep_are_not_waited_for() -> None:
    with Computing(20):
        begin = time.monotonic()
        assert wait_until_past(30)
        assert time.monotonic() - begin < 10


LIBRARIES = ("libs/libphi_core.so", "base/libpaddle.so")


def _build_id(library: Path) -> str:
    """Return what ``readelf`` says."""
    said = subprocess.run(["readelf", "--notes", library], capture_output=True, text=True, check=False).stdout
    return re.findall(r"Build ID: ([0-9a-f]{40})", said)[0]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.parametrize("name", LIBRARIES)
def test_this_build_is_verified_and_one_with_another_id_is_not(name: str, tmp_path: Path) -> None:
    library = Path(paddle.__file__).parent / name
    verified.require(library.name)
    identity = bytes.fromhex(_build_id(library))
    known = {(build.identity, build.machine) for build in verified.BUILDS if build.library == library.name}
    assert verified.identify(library) == (f"build-id:{identity.hex()}", platform.machine())
    assert verified.identify(library) in known
    # the same library whose note holds another id
    changed = tmp_path / library.name
    shutil.copyfile(library, changed)
    with changed.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(b"GNU\0" + identity)
        content[at + 4] ^= 1
    assert _build_id(changed) != identity.hex()
    assert verified.identify(changed) == (f"build-id:{_build_id(changed)}", platform.machine())
    assert verified.identify(changed) not in known


@pytest.fixture
def unverified(nothing_left_behind: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run with a table in which the builds of this Paddle are not."""
    caches = (recording_switch, log_severity)
    for cached in caches:
        cached.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(verified, "BUILDS", ())
        yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.usefixtures("unverified")
def test_a_build_that_was_not_verified_is_left_alone_and_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stepscope.profile(output=tmp_path / "runs", analyse="later"):
        level = recording_switch()
        for _ in range(5):
            paddle.ones([4]).sin()
    assert (level.level, level.buffers) == (None, [])
    (run,) = runs(tmp_path / "runs")
    assert counts(run)["sin dygraph"] == 5
    state = manifest(run)["collectors"]["paddle"]
    for name in LIBRARIES:
        library = Path(paddle.__file__).parent / name
        for part in (library.name, paddle.__version__, platform.machine(), _build_id(library), "README.md"):
            assert part in state["note"]
    capfd.readouterr()
    assert main(["check", str(run)]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert f"operators; {state['note']}" in shown
    assert "2 × build_not_verified" in shown
