"""A file is written by a forked child or here, and it is whole under its name or not there."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from stepscope.collect.journal import saving
from stepscope.collect.journal.saving import SavedFile, fork_pays, own_memory

WHOLE = '{"traceEvents": []}\n'


def in_child_only(work: Callable[[], object]) -> Callable[[str], None]:
    """Return a ``save`` that does ``work`` in a forked child, and writes the whole file elsewhere."""
    parent = os.getpid()

    def save(path: str) -> None:
        if os.getpid() != parent:
            work()
        Path(path).write_text(WHOLE)

    return save


def fail() -> None:
    message = "in the child"
    raise OSError(message)


@pytest.fixture
def no_children() -> Iterator[None]:
    """Whatever happened, no child is left behind; other tests' (multiprocessing's tracker) are not ours."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_the_process_writes_at_once_without_a_fork(tmp_path: Path, no_children: None) -> None:
    saved = SavedFile(tmp_path / "k.json", in_child_only(fail), fork=False)
    assert (tmp_path / "k.json").read_text() == WHOLE
    saved.settle()
    assert not saved.forked


def test_a_child_writes_while_the_process_goes_on(tmp_path: Path, no_children: None) -> None:
    read, write = os.pipe()
    saved = SavedFile(tmp_path / "k.json", in_child_only(lambda: os.read(read, 1)), fork=True)
    # Given the child is at it, the file is not there under its name
    assert not (tmp_path / "k.json").exists()
    os.write(write, b"1")
    saved.settle()
    os.close(read)
    os.close(write)
    assert saved.forked
    assert (tmp_path / "k.json").read_text() == WHOLE
    assert (tmp_path / "k.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.json"]


@pytest.mark.parametrize(
    "work",
    [fail, lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL)],
    ids=["raises", "leaves without writing", "is killed"],
)
def test_where_the_child_fails_the_process_writes(
    tmp_path: Path, no_children: None, work: Callable[[], object]
) -> None:
    saved = SavedFile(tmp_path / "k.json", in_child_only(work), fork=True)
    saved.settle()
    assert not saved.forked
    assert (tmp_path / "k.json").read_text() == WHOLE


def test_a_child_that_hangs_is_ended(tmp_path: Path, no_children: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "HUNG_AFTER", 0.3)
    saved = SavedFile(tmp_path / "k.json", in_child_only(lambda: time.sleep(600)), fork=True)
    begin = time.monotonic()
    saved.settle()
    assert time.monotonic() - begin < 60
    assert (tmp_path / "k.json").read_text() == WHOLE


def test_a_child_whose_end_somebody_else_noticed(tmp_path: Path, no_children: None) -> None:
    # Given a program that waits for any child of its own
    saved = SavedFile(tmp_path / "k.json", in_child_only(lambda: None), fork=True)
    os.wait()
    saved.settle()
    assert saved.forked
    assert (tmp_path / "k.json").read_text() == WHOLE


def test_a_program_that_ignores_its_children(tmp_path: Path, no_children: None) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        saved = SavedFile(tmp_path / "k.json", in_child_only(lambda: time.sleep(0.1)), fork=True)
        saved.settle()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert (tmp_path / "k.json").read_text() == WHOLE


def test_a_file_that_is_cut_is_kept_and_said(tmp_path: Path) -> None:
    # Given a writer that, like Kineto, says nothing when the disk is full
    with pytest.raises(OSError, match="cut"):
        SavedFile(tmp_path / "k.json", lambda path: Path(path).write_text(WHOLE[:7]) and None, fork=False)
    assert (tmp_path / "k.json").read_text() == WHOLE[:7]


def test_a_fork_pays_only_beside_little_memory_of_the_trainings_own() -> None:
    megabyte = 1 << 20
    assert fork_pays(200 * megabyte, 1500 * megabyte)
    assert not fork_pays(2000 * megabyte, 3300 * megabyte)
    assert not fork_pays(10 * megabyte, 40 * megabyte)
    assert not fork_pays(0, 1500 * megabyte)


def test_own_memory_grows_with_what_is_taken() -> None:
    # Pages of its own: those of the allocator may be there already.
    size = 64 << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as block:
        before = own_memory()
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        assert own_memory() - before >= size // 2
