"""Chunks and writer of the native recorder under sanitizers: threads are born and end while it starts and stops."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from stepscope.native.recorder import build
from stepscope.trace.blocks import FrameWriter, read_frames
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import MAGIC, WORDS, WORDS_HEAD, Tag
from tests.sizes import Size, first_quick

_SOURCES = [path for path in build.sources() if path.name in ("chunks.cpp", "clock.cpp", "session.cpp", "writer.cpp")]
RECORDINGS = 30


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile the program with some sanitizers, once."""
    return cache(lambda sanitizers: compiled(tmp_path_factory.mktemp("stress"), sanitizers))


def compiled(directory: Path, sanitizers: str) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = directory / "stress"
    flags = ["-O1", "-g", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{_SOURCES[0].parent}", "-pthread"]
    sources = [*_SOURCES, Path(__file__).with_name("recorder_stress.cpp")]
    command = [compiler, *flags, f"-fsanitize={sanitizers}", *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    return program


def words_of(path: Path) -> bytes:
    ledger = LossLedger(path.name)
    blocks = [block[WORDS_HEAD.size :] for block in read_frames(path, ledger, MAGIC) if block.startswith(WORDS)]
    assert not ledger.rows()
    return b"".join(blocks)


@pytest.mark.parametrize(
    ("sanitizers", "chunks"), first_quick([("thread", 64), ("thread", 4), ("address,undefined", 64)])
)
def test_threads_that_come_and_go(
    programs: Callable[[str], Path], sanitizers: str, chunks: int, tmp_path: Path, size: Size
) -> None:
    program, recordings = programs(sanitizers), size.many(RECORDINGS)
    for number in range(recordings):
        FrameWriter(tmp_path / f"{number}.ssr", MAGIC).close()
    ran = subprocess.run(
        [str(program), str(tmp_path), str(recordings), str(chunks)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    counted = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    assert len(counted) == recordings
    for number, written, _ in counted:
        found = words_of(tmp_path / f"{number}.ssr")
        assert sum(byte >> 4 == Tag.BEGIN for byte in found[7::8]) == written
    assert sum(written for _, written, _ in counted) > size.many(1000)
    assert chunks > 4 or any(dropped for _, _, dropped in counted)
