"""Sampled Python stacks of programs that know what they do: their shares, their states, and nothing that never was."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from stepscope.collect.host.stack_samples import StackSampler, StackSamplesCollector
from stepscope.collect.surgery import python_layout
from stepscope.read import read_files
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.clock import take_anchor
from stepscope.trace.tables import Frames
from tests.sizes import Size

if python_layout.refusal():
    pytest.skip(str(python_layout.refusal()), allow_module_level=True)

#: Milliseconds of each phase, as in a short training step.
PHASE = 0.004


class Sampled:
    """A program that was sampled."""

    def __init__(self, sampler: StackSampler) -> None:
        self.frames: Frames = {}
        self.figures: dict[str, int] = {}
        self.blocks: list[dict[str, Any]] = []
        self._sampler = sampler

    def take(self) -> None:
        """Take what there is, with the names of the threads that live, as a session does twice a second."""
        while (block := self._sampler.take()) is not None:
            self.blocks.append(block)

    def functions(self, thread: str = "MainThread") -> pl.DataFrame:
        """Return a row for each row of samples of a thread: the names of its functions, innermost first."""
        samples = self.frames["samples"].filter(pl.col("name").cast(pl.String) == thread)
        names = self.frames["stacks"].with_columns(functions=pl.col("frames").list.eval(_FUNCTION)).drop("frames")
        return samples.join(names, left_on="stack", right_on="id", how="left")


_FUNCTION = pl.element().struct.field("function").str.split(".").list.last()


@contextmanager
def sampling(folder: Path, hz: float = 400.0) -> Iterator[Sampled]:
    """Sample what runs inside, write a block of it as a session does, and read it."""
    sampler, before = StackSampler(), take_anchor()
    sampled = Sampled(sampler)
    assert sampler.reason == ""
    sampler.start(hz)
    try:
        yield sampled
    finally:
        sampler.stop()
        sampled.figures = sampler.figures
        sampled.take()
        sampler.close()
    anchors = [(anchor.monotonic, anchor.epoch, anchor.uncertainty) for anchor in (before, take_anchor())]
    file = FrameWriter(folder / "steps.ssj")
    for block in sampled.blocks:
        file.append(pack({"process": os.getpid(), "host": "here", "anchors": anchors, "samples": block}))
    file.append(pack({"closed": True}))
    file.close()
    sampled.frames = read_files([folder / "steps.ssj"])


def python_code(until: float) -> None:
    x = 0
    while time.perf_counter() < until:
        x += 1
        x ^= 3


CONTENT = bytes(100_000)


def c_without_gil(until: float) -> None:
    while time.perf_counter() < until:
        hashlib.sha256(CONTENT)


def c_with_gil(until: float) -> None:
    while time.perf_counter() < until:
        sum(range(20_000))


def sleeps(until: float) -> None:
    time.sleep(max(until - time.perf_counter(), 0))


LOCK = threading.Lock()


def waits_for_a_lock(until: float) -> None:
    LOCK.acquire(timeout=max(until - time.perf_counter(), 0.0))


SOCKETS = socket.socketpair()


@pytest.fixture(scope="module", autouse=True)
def sockets_are_closed() -> Iterator[None]:
    yield
    for end in SOCKETS:
        end.close()


def reads_a_socket(until: float) -> None:
    SOCKETS[0].settimeout(max(until - time.perf_counter(), 1e-4))
    try:
        SOCKETS[0].recv(1)
    except OSError:
        return


def collects(until: float) -> None:
    while time.perf_counter() < until:
        gc.collect()


PHASES: dict[Callable[[float], None], str] = {
    python_code: "python",
    c_without_gil: "native",
    c_with_gil: "python",
    sleeps: "sleep",
    waits_for_a_lock: "lock",
    reads_a_socket: "io",
    collects: "collecting",
}


def test_the_shares_and_states_are_those_of_a_program_that_knows_them(tmp_path: Path, size: Size) -> None:
    # Given a program that does one thing after the other, and times each, and for how long it did not get on
    spent: Counter[str] = Counter()
    waited = 0.0
    LOCK.acquire()
    end = time.perf_counter() + (20.0 if size.full else 4.0)
    computed = time.thread_time() + 1.0
    with sampling(tmp_path) as sampled:
        # (a machine whose cores are taken needs longer for a second of computing)
        while time.perf_counter() < end or time.thread_time() < computed:
            for phase in PHASES:
                begin, cpu = time.perf_counter(), time.thread_time()
                phase(begin + PHASE)
                took = time.perf_counter() - begin
                waited += 1e9 * max(took - max(PHASE, time.thread_time() - cpu), 0.0)
                spent[phase.__name__] += int(1e9 * took)
    LOCK.release()
    rows = sampled.functions().explode("functions").filter(pl.col("functions").is_in(list(spent)))
    hits = Counter(dict(rows.group_by("functions").agg(pl.col("count").sum()).iter_rows()))
    total = sum(hits.values())
    # (nobody samples while the whole process stands still; this time is in one of the phases)
    still = max(1 - sampled.figures["covered"] / spent.total(), 0.0)
    assert still < 0.2 + waited / spent.total()
    # Then each has its share of the samples, within 3 points, or what chance allows so few samples
    for phase, state in PHASES.items():
        share, truth = hits[phase.__name__] / total, spent[phase.__name__] / spent.total()
        chance = 4 * (truth * (1 - truth) / total) ** 0.5
        assert abs(share - truth) < max(0.03, chance) + still, (phase, share, truth, total)
        # and does what it does, or waits for a core (who sleeps is awake for a moment before and after)
        seen = rows.filter(pl.col("functions") == phase.__name__)
        states = Counter(dict(seen.group_by(pl.col("state").cast(pl.String)).agg(pl.col("count").sum()).iter_rows()))
        # (a machine whose cores are taken shows some of those who wake as running)
        wrong = states.total() - states[state] - states["core"]
        assert wrong < max(0.5 * states.total(), 2), (phase, states)
        assert states[state] or (wrong <= 2 and states.total() < 20), (phase, states)
    # and the time that samples stand for is the time in which the program got on
    assert sampled.functions()["dur"].sum() == pytest.approx((1 - still) * spent.total(), rel=0.2)


def test_two_threads_that_compute_in_python_take_turns(tmp_path: Path) -> None:
    spent = {}

    def busy() -> None:
        python_code(time.perf_counter() + 1.5)
        spent[threading.current_thread().name] = time.thread_time()

    with sampling(tmp_path) as sampled:
        threads = [threading.Thread(target=busy, name=f"busy {number}") for number in range(2)]
        [thread.start() for thread in threads]
        time.sleep(0.5)
        sampled.take()
        [thread.join() for thread in threads]
    for name, seconds in spent.items():
        rows = sampled.functions(name)
        by_state = dict(rows.group_by(pl.col("state").cast(pl.String)).agg(pl.col("count").sum()).iter_rows())
        total = sum(by_state.values())
        shares = {state: by_state.get(state, 0) / total for state in ("python", "gil", "core")}
        # Each has the GIL for as long as it had CPU time; else it waits for the GIL, or for a core
        assert shares["gil"] > 0.05 * (1 - shares["core"]) or shares["core"] > 0.9, by_state
        assert shares["gil"] + shares["core"] > 0.3, by_state
        assert shares["python"] + shares["core"] > seconds / 1.5 - 0.12, (by_state, seconds)
        assert sum(shares.values()) > 0.8, by_state  # it is native between giving up the GIL and waiting for it


def innermost(x: int) -> int:
    return x + 1


def middle(x: int) -> int:
    return innermost(x) + innermost(x)


def first_family(x: int) -> int:
    return middle(x)


def with_many_arguments(x: int, y: int, z: int, u: int = 1, v: int = 2) -> int:
    p = q = x + y
    return p + q + z + u + v


def through_a_generator(x: int) -> int:
    return sum(with_many_arguments(i, i, i) for i in (x, 2))


def second_family(x: int) -> int:
    return through_a_generator(x) + with_many_arguments(x, x, x)


CALLS = {
    ("calls_both", "first_family"),
    ("calls_both", "second_family"),
    ("first_family", "middle"),
    ("middle", "innermost"),
    ("second_family", "through_a_generator"),
    ("second_family", "with_many_arguments"),
    ("through_a_generator", "<genexpr>"),
    ("<genexpr>", "with_many_arguments"),
}


def test_no_stack_that_never_was(tmp_path: Path, size: Size) -> None:
    # Given ten million calls a second, in two families that never call one another
    def calls_both() -> None:
        end = time.perf_counter() + size.many(20)
        while time.perf_counter() < end:
            for i in range(200):
                first_family(i)
                second_family(i)

    with sampling(tmp_path, 1000.0) as sampled:
        calls_both()
    rows = sampled.functions().drop_nulls("functions").explode("functions")
    known = {name for pair in CALLS for name in pair}
    pairs = zip(rows["ts"], rows["functions"], rows["ts"][1:], rows["functions"][1:], strict=False)
    seen = Counter(
        (outer, inner) for at, inner, then, outer in pairs if at == then and inner in known and outer in known
    )
    impossible = {pair: count for pair, count in seen.items() if pair not in CALLS}
    assert seen.total() > 30
    # (few samples, of cores that others use, allow for more)
    assert sum(impossible.values()) <= max(seen.total() / (1000 if size.full else 100), 2), impossible
    assert sampled.figures["torn"] <= 0.1 * sampled.figures["walks"]


def test_names_are_right_while_code_and_threads_come_and_go(tmp_path: Path, size: Size) -> None:
    end = time.perf_counter() + size.many(20)

    def makes_code() -> None:
        number = 0
        while time.perf_counter() < end:
            number += 1
            made: dict[str, Callable[[int], int]] = {}
            lines = "\n" * (number % 7)
            text = f"def made_{number % 50}(x):\n{lines}    y = [x * k for k in range(40)]\n    return sum(y)"
            exec(compile(text, f"<made {number % 50}>", "exec"), made)
            for _ in range(20):
                made[f"made_{number % 50}"](number)

    def goes() -> None:
        while time.perf_counter() < end:
            threads = [threading.Thread(target=middle, args=(1,)) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]

    def deep(calls: int) -> None:
        return deep(calls - 1) if calls else time.sleep(0.002)

    with sampling(tmp_path, 1000.0) as sampled:
        threads = [threading.Thread(target=makes_code), threading.Thread(target=goes)]
        [thread.start() for thread in threads]
        while time.perf_counter() < end:
            deep(800)
            gc.collect()
        [thread.join() for thread in threads]
    frames = sampled.frames["stacks"].explode("frames").unnest("frames")
    made = frames.filter(pl.col("function").str.starts_with("made_"))
    assert made.height
    for file, function in zip(made["file"], made["function"], strict=True):
        assert file == f"<made {function.split('_')[1].split('.')[0]}>"
    # and a stack too deep to be read is counted
    assert "stacks_cut" in sampled.frames["losses"]["what"].to_list()


def test_a_forked_child_does_not_sample_and_may_begin_to(tmp_path: Path) -> None:
    with sampling(tmp_path) as sampled:
        python_code(time.perf_counter() + 0.1)
        child = os.fork()
        if not child:
            code = 1
            try:
                files = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
                own = StackSampler()
                own.start(200.0)
                python_code(time.perf_counter() + 0.2)
                block = own.take()
                own.close()
                left = [name for name in files if "/task/" in name]
                code = 0 if block is not None and block["figures"]["samples"] and not left else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        python_code(time.perf_counter() + 0.1)
    assert sampled.figures["samples"] > 20


def test_many_recordings_leave_nothing(tmp_path: Path, size: Size) -> None:
    def state() -> tuple[int, list[str]]:
        tasks = sorted(path.name for path in Path("/proc/self/task").iterdir())
        return len(list(Path("/proc/self/fd").iterdir())), tasks

    def cycle() -> None:
        sampler = StackSampler()
        sampler.start(1000.0)
        sampler.stop()
        sampler.take()
        sampler.close()
        sampler.close()

    [cycle() for _ in range(10)]
    gc.collect()
    before, resident = state(), _resident()
    times = size.many(1000)
    [cycle() for _ in range(times)]
    gc.collect()
    assert state() == before
    assert _resident() - resident < 1024 * times + (1 << 20)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_signal_reaches_the_sampling_thread_and_none_is_sent(tmp_path: Path) -> None:
    with sampling(tmp_path):
        time.sleep(0.05)
        tasks = {path.parent: path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}
        (task,) = [task for task, name in tasks.items() if name == "stepscope-stack"]
        blocked = re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())
        assert blocked
        every = {number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)}
        assert all(int(blocked[1], 16) >> (number - 1) & 1 for number in every if number < 32)


def test_an_interpreter_that_ends_under_the_sampler_ends_well() -> None:
    code = (
        "import threading, time; from stepscope.collect.host.stack_samples import StackSampler\n"
        "sampler = StackSampler(); sampler.start(1000.0); assert not sampler.reason\n"
        "for _ in range(3): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "x = [list(range(1000)) for _ in range(500)]; time.sleep(0.1); print('ends')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


#: Forbids process_vm_readv (310) with EPERM, as containers do.
FORBID = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 310), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
content = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *rule) for rule in rules))
program = struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(content))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""


def test_where_the_system_call_is_forbidden_a_file_takes_its_place() -> None:
    code = FORBID + (
        "from stepscope.collect.host.stack_samples import StackSampler\nimport time\n"
        "sampler = StackSampler(); sampler.start(500.0); end = time.time() + 30\n"
        "while sampler.figures['walks'] <= 20 and time.time() < end: pass\n"
        "figures = sampler.figures; sampler.close(); print(figures['walks'] > 20, figures['torn'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda patch: patch.setattr(platform, "machine", lambda: "aarch64"), "x86-64 only, not on linux on aarch64"),
        (lambda patch: patch.setattr(sys, "version_info", (3, 16, 0)), "CPython 3.16"),
        (lambda patch: patch.setattr(platform, "libc_ver", lambda: ("", "")), "glibc only"),
        (lambda patch: patch.setattr(sysconfig, "get_config_var", lambda _: 1), "free-threaded"),
        (lambda patch: patch.setenv("STEPSCOPE_NATIVE", "0"), "switched off"),
    ],
)
def test_where_stacks_cannot_be_read_it_says_so_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], words: str
) -> None:
    change(monkeypatch)
    sampler = StackSampler()
    sampler.start(100.0)
    assert words in sampler.reason
    assert sampler.take() is None
    sampler.close()
    said = StackSamplesCollector().available()
    assert said is not None
    assert words in said
    assert "unknown" in said


def test_a_layout_that_is_not_that_of_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dict(python_layout.offsets() or {})
    monkeypatch.setattr(python_layout, "offsets", lambda: {**right, "code_first": right["code_first"] + 4})
    assert "the one that Python says" in StackSampler().reason
    monkeypatch.undo()
    sampler = StackSampler()
    assert sampler.reason == ""
    sampler.close()


def test_a_process_of_an_unknown_kind_ends_the_following_of_workers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strange:
        @property
        def _popen(self) -> object:
            raise OSError("gone")

    monkeypatch.setitem(sys.modules, "multiprocessing.process", SimpleNamespace(**{"_children": {Strange()}}))
    sampler = StackSampler()
    sampler.start(100.0)
    sampler.follow_workers()
    sampler.follow_workers()
    python_code(time.perf_counter() + 0.1)
    block = sampler.take()
    sampler.close()
    assert block is not None
    assert block["processes"] == []
