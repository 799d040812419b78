"""A library of the cache is loaded only if it is what was built, and nobody else can have written it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.collect.torch import recorder_cache

CONTENT = bytes(range(256)) * 40
SOMEBODY = 12345


@pytest.fixture
def library(tmp_path: Path) -> Path:
    directory = tmp_path / "cache"
    recorder_cache.open_directory(directory)
    made = tmp_path / "made.so"
    made.write_bytes(CONTENT)
    recorder_cache.keep(made, directory / "recorder.so")
    assert not made.exists()
    return directory / "recorder.so"


def give_away(path: Path) -> None:
    os.chown(path, SOMEBODY, -1)


def cut(path: Path) -> None:
    path.write_bytes(CONTENT[:100])


def flip(path: Path) -> None:
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))


def link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def test_what_was_kept_is_whole_and_ours(library: Path) -> None:
    assert recorder_cache.fault(library) is None
    assert {file.stat().st_mode & 0o077 for file in (library.parent, *library.parent.iterdir())} == {0}


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, "not the file that was built"),
        (flip, "not the file that was built"),
        (Path.unlink, "does not exist"),
        (link, "can write"),
        (lambda path: path.with_suffix(".sha256").unlink(), "sha256 does not exist"),
        (lambda path: path.chmod(0o666), "can write"),
        (lambda path: path.parent.chmod(0o777), "cache"),
    ],
    ids=["cut", "flipped", "gone", "link", "digest gone", "writable", "directory writable"],
)
def test_what_cannot_be_trusted_is_said(library: Path, harm: Callable[[Path], object], said: str) -> None:
    harm(library)
    assert said in str(recorder_cache.fault(library))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_are_not_trusted(library: Path) -> None:
    give_away(library)
    assert f"belongs to user {SOMEBODY}" in str(recorder_cache.fault(library))
    os.chown(library, 0, -1)
    give_away(library.parent)
    assert f"belongs to user {SOMEBODY}" in str(recorder_cache.fault(library))
    with pytest.raises(PermissionError, match="belongs to user"):
        recorder_cache.open_directory(library.parent)


def test_others_may_not_write_to_our_directory_any_more(library: Path) -> None:
    library.parent.chmod(0o777)
    recorder_cache.open_directory(library.parent)
    assert recorder_cache.fault(library) is None
