"""What every output format promises, whatever it writes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse import results
from stepscope.report.protocol import Format, Source
from stepscope.report.registry import FORMATS
from stepscope.trace import tables
from stepscope.trace.schema import TABLES

from ..golden import hostile

pytestmark = pytest.mark.parametrize("output", FORMATS.values(), ids=lambda output: output.name)


def full() -> Source:
    frames = tables.lazy(hostile.frames())
    return Source(frames, {name: results.compute(name, frames) for name in results.RESULTS}, {"rank": 3})


def empty() -> Source:
    frames = tables.lazy(tables.complete({}))
    return Source(frames, {name: results.compute(name, frames) for name in results.RESULTS}, {})


@pytest.mark.parametrize("make", [full, empty])
def test_returns_exactly_the_files_it_made_and_they_are_private(
    output: Format, make: type[Source], tmp_path: Path
) -> None:
    written = output.write(make(), tmp_path / "new" / "results")
    assert sorted(written) == sorted((tmp_path / "new" / "results").iterdir())
    assert written
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert all(path.stat().st_size for path in written)


def test_the_same_source_gives_the_same_bytes(output: Format, tmp_path: Path) -> None:
    first, second = (output.write(full(), tmp_path / folder) for folder in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


def test_writing_again_replaces(output: Format, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in output.write(hostile.source(), tmp_path)}
    others = Source(empty().tables, {"op_statistic": pl.DataFrame({"Name": ["new"]}), "communication": {}}, {})
    after = output.write(others, tmp_path)
    assert sorted(after) == sorted(before)
    assert all(path.read_bytes() != before[path] for path in after)
    assert sorted(tmp_path.iterdir()) == sorted(after)


def test_tables_filtered_by_step_still_make_files(output: Format, tmp_path: Path) -> None:
    # Given tables of which spans are gone that others point to, as `--steps` leaves them
    source = full()
    gone = source.tables["spans"].filter(pl.col("id") > 50)
    assert set(source.tables) == set(TABLES)
    assert output.write(Source({**source.tables, "spans": gone}, source.results, source.manifest), tmp_path)
