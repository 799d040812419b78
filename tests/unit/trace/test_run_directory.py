"""The layout of a run: private, never shared, refused in one line where it is damaged."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from stepscope.errors import DamagedTraceError, FormatVersionError, NotARunError, OutputError
from stepscope.trace.run_directory import FORMAT_VERSION, RankDirectory, check_writable, ranks, runs, write_atomically


def made(run: Path, *numbers: int) -> None:
    for number in numbers:
        rank = RankDirectory(run / f"rank{number}")
        rank.create()
        rank.write_manifest({"rank": number})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_and_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made(tmp_path / "run", 3)
    finally:
        os.umask(before)
    rank = RankDirectory(tmp_path / "run" / "rank3")
    assert (rank.rank, mode(rank.path), mode(rank.capture), mode(rank.manifest_path)) == (3, 0o700, 0o700, 0o600)
    assert (rank.tables, rank.results) == (rank.path / "tables", rank.path / "results")


def test_two_recordings_never_share_a_rank(tmp_path: Path) -> None:
    made(tmp_path, 0)
    with pytest.raises(FileExistsError):
        RankDirectory(tmp_path / "rank0").create()


def test_manifest_comes_back_with_its_version(tmp_path: Path) -> None:
    made(tmp_path, 1)
    assert RankDirectory(tmp_path / "rank1").read_manifest() == {"format_version": FORMAT_VERSION, "rank": 1}


def test_manifest_holds_any_text(tmp_path: Path) -> None:
    rank = RankDirectory(tmp_path / "rank0")
    rank.create()
    rank.write_manifest({"name": "\udc80 \x00 </script> 日本語", "path": Path("x")})
    text = rank.manifest_path.read_bytes()
    assert text.isascii()
    assert json.loads(text)["name"] == "\udc80 \x00 </script> 日本語"


def test_ranks_are_ordered_by_number(tmp_path: Path) -> None:
    made(tmp_path, 10, 9, 0)
    (tmp_path / "rankings").mkdir()
    (tmp_path / "rank7").mkdir()
    assert [rank.rank for rank in ranks(tmp_path)] == [0, 9, 10]
    assert [rank.rank for rank in ranks(tmp_path / "rank9")] == [9]


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_directory_without_a_run_has_no_ranks_and_no_runs(tmp_path: Path, path: str) -> None:
    assert ranks(tmp_path / path) == []
    assert runs(tmp_path / path) == []


def test_runs_are_ordered_by_the_time_in_their_names_else_by_that_of_their_manifest(tmp_path: Path) -> None:
    names = ("z_20200101-000000", "a_20260101-000000", "a_20260101-000000_2", "a_20260101-000000-10", "of a user")
    for name in names:
        made(tmp_path / name, 0)
    (tmp_path / ".hidden_20200101-000000" / "rank0").mkdir(parents=True)
    (tmp_path / "empty_20200101-000000").mkdir()
    os.utime(tmp_path / "of a user" / "rank0" / "manifest.json", (1.6e9, 1.6e9))  # September 2020
    expected = [names[0], names[4], names[1], names[2], names[3]]
    assert [path.name for path in runs(tmp_path)] == expected


def test_rank_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(NotARunError, match=r"holds no manifest\.json"):
        RankDirectory(tmp_path).read_manifest()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"rank": 1}', '"text"'])
def test_damaged_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DamagedTraceError, match="is damaged"):
        RankDirectory(tmp_path).read_manifest()


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, "one"])
def test_manifest_of_another_version(tmp_path: Path, version: object) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format_version": version}))
    with pytest.raises(FormatVersionError, match=f"version {version}; this stepscope reads up to {FORMAT_VERSION}"):
        RankDirectory(tmp_path).read_manifest()


def test_atomic_write_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old and long")
    write_atomically(path, b"new")
    with pytest.raises(TypeError):
        write_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_output_is_proven_before_training_starts(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Choose another with --output"):
        check_writable(tmp_path / "file")
    with pytest.raises(OutputError, match="Cannot write to the output directory"):
        check_writable(tmp_path / "file" / "below")
    with pytest.raises(OutputError, match="proc"):
        check_writable(Path("/proc/stepscope"))
