"""Every output format keeps the contract: private files, whole or absent, the same for the same tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.analyse import registry
from stepscope.errors import OutputError
from stepscope.read import read_files
from stepscope.report.protocol import Format, Source
from stepscope.report.registry import FORMATS
from stepscope.trace.tables import Frames, complete, lazy

TRACE = Path(__file__).resolve().parents[1] / "data" / "kineto" / "alexnet_simple_add.json.gz"


def source_of(frames: Frames) -> Source:
    tables = lazy(frames)
    return Source(tables, {name: registry.compute(name, tables) for name in registry.RESULTS}, {"rank": 0})


@pytest.fixture(scope="module")
def source() -> Source:
    return source_of(read_files([TRACE]))


@pytest.fixture(params=FORMATS)
def output(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_it_is_found_by_its_name(output: Format) -> None:
    assert FORMATS[output.name] is output
    assert output.name.isalnum()


def test_files_are_private_complete_and_named(output: Format, source: Source, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths = output.write(source, tmp_path / "new" / "results")
    finally:
        os.umask(before)
    directory = tmp_path / "new" / "results"
    assert paths
    assert sorted(paths) == sorted(directory.iterdir())
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_size for path in paths)


def test_the_same_tables_give_the_same_bytes(output: Format, source: Source, tmp_path: Path) -> None:
    output.write(source, tmp_path / "one")
    output.write(source, tmp_path / "other")
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_writing_again_replaces(output: Format, source: Source, tmp_path: Path) -> None:
    first = output.write(source, tmp_path)
    expected = contents(tmp_path)
    for path in first:
        path.write_bytes(path.read_bytes() * 2 + b"tail of a longer file")
    assert output.write(source, tmp_path) == first
    assert contents(tmp_path) == expected


def test_a_rank_without_anything(output: Format, tmp_path: Path) -> None:
    paths = output.write(source_of(complete({})), tmp_path)
    assert sorted(paths) == sorted(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written(output: Format, source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file"):
        output.write(source, tmp_path / "file" / "below")
    assert contents(tmp_path) == {"file": b"mine"}


def test_the_tables_are_not_touched(output: Format, source: Source, tmp_path: Path) -> None:
    before = {name: frame.collect() for name, frame in source.tables.items()}
    output.write(source, tmp_path)
    assert all(before[name].equals(frame.collect()) for name, frame in source.tables.items())
