"""The journal records from anywhere, survives a kill, and never harms the training."""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.collect.journal import journal as module
from stepscope.collect.journal.journal import Journal
from stepscope.trace.blocks import FrameWriter
from tests.clocks import wait_until
from tests.frameworks.left_behind import own_threads
from tests.unit.collect.reading import read_journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.ssj")
    yield opened
    opened.close()


def test_every_sort_of_record_comes_back(journal: Journal) -> None:
    # Given: records of all sorts, with times of the monotonic clock
    epoch, now = time.time_ns(), time.perf_counter_ns()
    journal.span("load", "data", now, now + 5_000, {"workers": 2, "shape": [8, 3]})
    journal.step(7, now, now + 10_000, "declared")
    journal.counter("loss", 0.25, lane="training", at_ns=now + 3)
    journal.counter("memory", 2**40, "bytes", at_ns=now + 4)
    journal.metadata("seed", "42")
    journal.loss("span_wrong_order", 2)
    # When
    assert journal.close()
    found = read_journal(journal.path)
    # Then
    (span,) = found.spans
    assert (span["name"], span["kind"], span["dur"], span["args"]) == (
        "load",
        "data",
        5_000,
        {"workers": 2, "shape": [8, 3]},
    )
    assert (span["thread"], span["thread_name"]) == (threading.get_native_id(), "MainThread")
    assert abs(span["ts"] - epoch) < 50_000_000
    (step,) = found.frames["steps"].to_dicts()
    assert (step["number"], step["ts"], step["dur"], step["source"]) == (7, span["ts"], 10_000, "declared")
    assert [
        (row["ts"] - span["ts"], row["lane"], row["name"], row["value"], row["unit"]) for row in found.counters
    ] == [
        (3, "training", "loss", 0.25, ""),
        (4, "counters", "memory", float(2**40), "bytes"),
    ]
    assert found.metadata == {"seed": 42}
    assert (found.counted, found.lost) == ({"span_wrong_order": 2}, {})
    assert {row.what: row.count for row in journal.ledger.rows()} == found.counted


def test_threads_keep_their_names_and_their_spans(journal: Journal) -> None:
    def work() -> None:
        journal.span("work", "annotation", 0, 1)
        recorded.wait()
        written.wait()

    recorded, written = threading.Barrier(4), threading.Barrier(4)
    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
    for thread in threads:
        thread.start()
    natives = {thread.native_id: thread.name for thread in threads}
    recorded.wait()
    journal.flush()
    written.wait()
    for thread in threads:
        thread.join()
    journal.close()
    assert {span["thread"]: span["thread_name"] for span in read_journal(journal.path).spans} == natives


def test_a_span_may_lie_on_another_thread(journal: Journal) -> None:
    journal.span("there", "annotation", 0, 1, None, 12345)
    journal.close()
    (span,) = read_journal(journal.path).spans
    assert (span["thread"], span["thread_name"]) == (12345, "thread 12345")


@pytest.mark.parametrize(
    "name",
    [
        "",
        '"quoted"',
        "back\\slash",
        "new\nline",
        "\x00\x1b[31m",
        "日本語 🚀",
        "lone \udc80",
        "‮right to left",
        "x" * 1_000_000,
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_any_text_is_kept(journal: Journal, name: str) -> None:
    journal.span(name, "annotation", 0, 1, {name: name})
    journal.counter(name, 1.0, name, name)
    journal.metadata(name, "0")
    journal.close()
    found = read_journal(journal.path)
    kept = name.replace("\udc80", "\\udc80")
    assert [(span["name"], span["args"]) for span in found.spans] == [(kept, {kept: kept})]
    assert [(row["name"], row["unit"], row["lane"]) for row in found.counters] == [(kept, kept, kept)]
    assert found.metadata == {kept: 0}
    assert found.lost == {}


def test_values_that_json_has_no_number_for(journal: Journal) -> None:
    for value in (math.nan, math.inf, -math.inf):
        journal.counter("loss", value)
    journal.span("s", "annotation", 0, 1, {"nan": math.nan, "list": [math.inf]})
    journal.close()
    found = read_journal(journal.path)
    assert [str(row["value"]) for row in found.counters] == ["nan", "inf", "-inf"]
    assert found.spans[0]["args"] == {"nan": "nan", "list": ["inf"]}


def test_blocks_appear_while_recording_goes_on(journal: Journal) -> None:
    journal.span("early", "annotation", 0, 1)
    wait_until(lambda: read_journal(journal.path).spans)
    found = read_journal(journal.path)
    assert len(found.spans) == 1
    assert found.lost == {"ended_abruptly": 1}


def test_flush_writes_now_and_close_once(journal: Journal) -> None:
    journal.span("a", "annotation", 0, 1)
    assert journal.flush()
    assert len(read_journal(journal.path).spans) == 1
    assert journal.recording
    assert journal.close()
    size = journal.path.stat().st_size
    journal.span("late", "annotation", 0, 1)
    assert not journal.close()
    assert not journal.flush()
    assert not journal.recording
    assert journal.path.stat().st_size == size


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.ssj").write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "journal.ssj")
    assert "stepscope-journ" not in own_threads()


def test_many_writers_lose_nothing(journal: Journal) -> None:
    def work(number: int) -> None:
        for i in range(3_000):
            journal.span(f"{number}", "annotation", i, i + 1)
            if i % 500 == 0:
                journal.flush()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = read_journal(journal.path)
    counts = found.frames["spans"]["name"].value_counts()
    assert dict(counts.iter_rows()) == {f"{number}": 3_000 for number in range(4)}
    assert found.lost == {}


def test_more_than_fits_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: room for 10 records, and a writer that does not wake up during the test
    monkeypatch.setattr(module, "ROOM", 10)
    monkeypatch.setattr(module, "TICK", 60)
    journal = Journal(tmp_path / "journal.ssj")
    for i in range(25):
        journal.span("s", "annotation", i, i)
    journal.flush()
    for i in range(12):
        journal.span("s", "annotation", i, i)
    journal.close()
    found = read_journal(journal.path)
    assert len(found.spans) == 20
    assert found.counted == {"journal_overflow": 17}


def test_unknown_loss_is_a_defect(journal: Journal) -> None:
    with pytest.raises(KeyError, match="misplaced"):
        journal.loss("misplaced")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
        (OSError(errno.EIO, "I/O error"), "capture_not_written"),
    ],
)
def test_a_disk_that_refuses_ends_the_recording_only(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError, what: str
) -> None:
    # Given: a journal with a block, on a disk that fills up
    journal.span("before", "annotation", 0, 1)
    journal.flush()
    append = FrameWriter.append

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(FrameWriter, "append", refuse)
    journal.span("lost", "annotation", 1, 2)
    with caplog.at_level(logging.WARNING, "stepscope"):
        assert not journal.flush()
        journal.span("after", "annotation", 2, 3)
        assert not journal.flush()
    # Then: one warning, nothing recorded any more, and what was there is readable
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(error.strerror) in caplog.text
    assert not journal.recording
    # When: there is room again for the last block
    monkeypatch.setattr(FrameWriter, "append", append)
    journal.close()
    found = read_journal(journal.path)
    assert [span["name"] for span in found.spans] == ["before"]
    assert (found.counted, found.lost) == ({what: 1}, {})
    assert [row.what for row in journal.ledger.rows()] == [what]


def test_a_really_full_disk(tmp_path: Path) -> None:
    # Given: a process whose files may have 20 kB, which records more than that, and says its result at the end
    program = """
import random, resource, signal, sys, time
from pathlib import Path
from stepscope.collect.journal.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
journal = Journal(Path(sys.argv[1]))
for i in range(20_000):
    journal.span(f"{random.random()}", "annotation", i, i + 1)
    if i % 1000 == 0:
        journal.flush()
journal.close()
print("trained", [(loss.what, loss.count) for loss in journal.ledger.rows()])
"""
    path = tmp_path / "journal.ssj"
    result = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0
    assert result.stdout == "trained [('capture_not_written', 1)]\n"
    assert result.stderr.count("\n") == 1
    assert "recording stops here, training goes on" in result.stderr
    found = read_journal(path)
    assert 0 < len(found.frames["spans"]) < 20_000
    assert "block_damaged" not in found.lost


def test_an_encoder_that_fails_is_counted_and_said(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "pack", fail)
    journal.span("s", "annotation", 0, 1)
    assert not journal.flush()
    assert "MemoryError" in caplog.text
    assert not journal.recording


def test_a_block_too_large_costs_that_block(journal: Journal) -> None:
    # Given: a span whose name alone is more than a block may hold
    journal.span("x" * (65 << 20), "annotation", 0, 1)
    journal.flush()
    journal.span("small", "annotation", 0, 1)
    journal.close()
    found = read_journal(journal.path)
    assert [span["name"] for span in found.spans] == ["small"]
    assert found.counted == {"journal_overflow": 1}


KILLED = """
import sys, time
from pathlib import Path
from stepscope.collect.journal.journal import Journal
journal = Journal(Path(sys.argv[1]))
for i in range(10**9):
    journal.span(str(i), "annotation", i, i + 1)
    if i % 100 == 99:
        journal.flush()
        sys.stdout.write(f"{i}\\n"); sys.stdout.flush()
"""


@pytest.mark.parametrize("seed", range(3))
def test_killed_process_leaves_all_it_had_flushed(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "journal.ssj"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0.001, 0.2))
    process.send_signal(signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    found = read_journal(path)
    names = [int(span) for span in found.frames["spans"]["name"].cast(str)]
    assert names == list(range(len(names)))
    assert len(names) > int(said[-1] if said else 99)
    assert found.lost.pop("ended_abruptly") == 1
    assert found.lost in ({}, {"block_cut": 1})


class Arguments(dict[str, object]):
    """Arguments of a span that a weak reference can follow: what the journal keeps of them can be seen."""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_writes_nothing_and_ends_well(journal: Journal) -> None:
    # Given: a journal with records that wait, and a thread that is writing all the time
    args = Arguments(kept=1)
    kept = weakref.ref(args)
    journal.span("parent", "annotation", 0, 1, args)
    del args
    child = os.fork()
    if child == 0:
        journal.span("child", "annotation", 0, 1)
        done = not journal.recording and not journal.flush() and not journal.close() and kept() is None
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    journal.span("parent", "annotation", 1, 2)
    journal.close()
    assert [span["name"] for span in read_journal(journal.path).spans] == ["parent", "parent"]


def test_recording_and_flushing_in_a_signal_handler(journal: Journal) -> None:
    # Given: a handler that records and flushes, called all the time while the main thread does the same
    calls = [0]

    def handle(*_: object) -> None:
        calls[0] += 1
        journal.span("handler", "annotation", 0, 1)
        journal.flush()

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.002)
    try:
        deadline = time.monotonic() + 60
        while calls[0] < 100 and time.monotonic() < deadline:
            journal.span("main", "annotation", 0, 1)
            journal.flush()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    journal.close()
    found = read_journal(journal.path)
    counts = dict(found.frames["spans"]["name"].value_counts().iter_rows())
    assert counts["handler"] == calls[0] >= 100
    assert found.lost == {}


def test_recording_inside_the_garbage_collector(journal: Journal) -> None:
    def record(*_: object) -> None:
        journal.span("collected", "garbage", 0, 1)

    gc.callbacks.append(record)
    try:
        for _ in range(20):
            journal.span("main", "annotation", 0, 1, {"list": [[]]})
            gc.collect(0)
            journal.flush()
    finally:
        gc.callbacks.remove(record)
    journal.close()
    assert len(read_journal(journal.path).spans) >= 60


def test_recording_in_del_and_atexit(tmp_path: Path) -> None:
    # Given: objects that record when they die, in the middle of a flush, at the end of the process, and after close
    program = """
import atexit, sys
from pathlib import Path
from stepscope.collect.journal.journal import Journal
journal = Journal(Path(sys.argv[1]))
class Dying:
    def __del__(self):
        journal.span("died", "annotation", 0, 1)
        journal.flush()
atexit.register(journal.close)
atexit.register(lambda: journal.span("at exit", "annotation", 0, 1))
for _ in range(100):
    cycle = Dying()
    cycle.itself = cycle
    journal.span("alive", "annotation", 0, 1, {"list": [[]]})
    journal.flush()
last = Dying()
"""
    path = tmp_path / "journal.ssj"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    found = read_journal(path)
    counts = dict(found.frames["spans"]["name"].value_counts().iter_rows())
    assert counts["alive"] == 100
    assert counts["at exit"] == 1
    assert found.lost == {}


def test_a_hanging_disk_does_not_hang_close(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given: a thread that is stuck in a write
    stuck, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        stuck.set()
        go_on.wait(30)

    monkeypatch.setattr(FrameWriter, "append", hang)
    journal.span("s", "annotation", 0, 1)
    thread = threading.Thread(target=journal.flush)
    thread.start()
    stuck.wait(10)
    # When, then
    start = time.monotonic()
    assert not journal.close(timeout=0.2)
    assert time.monotonic() - start < 25  # the write is stuck for 30
    assert not journal.recording
    go_on.set()
    thread.join()


def test_a_clock_that_was_set_is_counted(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given: the system's clock is set back by an hour during a recording
    now = time.perf_counter_ns()
    journal.span("before", "annotation", now, now + 5)
    journal.flush()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)
    journal.flush()
    now = time.perf_counter_ns()
    journal.span("after", "annotation", now, now + 7)
    journal.close()
    # Then: durations stay, all times are on one time line, and the change is counted
    found = read_journal(journal.path)
    assert {span["name"]: span["dur"] for span in found.spans} == {"before": 5, "after": 7}
    times = {span["name"]: span["ts"] for span in found.spans}
    assert 0 < times["after"] - times["before"] < 10_000_000_000
    assert found.lost == {"clock_set": 1}


def test_a_thousand_journals_leave_nothing(tmp_path: Path) -> None:
    # Given: 20 cycles to warm up
    def cycle(number: int) -> None:
        journal = Journal(tmp_path / f"{number}.ssj")
        journals.add(journal)
        journal.span("s", "annotation", 0, 1)
        journal.close()

    journals: weakref.WeakSet[Journal] = weakref.WeakSet()
    for number in range(20):
        cycle(number)
    before = own_threads(), len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20, 220):
        cycle(number)
    assert (own_threads(), len(list(Path("/proc/self/fd").iterdir()))) == before
    gc.collect()
    assert not journals
