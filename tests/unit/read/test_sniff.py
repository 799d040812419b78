from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import NotATraceError
from stepscope.read.sniff import Identity, identify
from tests.conftest import WriteTrace


def test_a_kineto_trace_says_whose_it_is(write_trace: WriteTrace) -> None:
    path = write_trace(
        [],
        distributedInfo={"rank": 3, "world_size": 8},
        host_name="node7",
        baseTimeNanoseconds=1_700_000_000_000_000_000,
    )
    assert identify(path) == Identity("kineto", 3, 8, "node7", 1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-34.Jul_15.pt.trace.json", 34),
        ("mtia_rank_0.json", 0),
        ("RANK7.json.gz", 7),
        ("frank3.json", None),
        ("trace.json", None),
        ("worker0.1623.pt.trace.json", None),
    ],
)
def test_else_its_name_says_the_rank(write_trace: WriteTrace, name: str, rank: int | None) -> None:
    assert identify(write_trace([], name=name)).rank == rank


def test_what_the_file_says_counts_more_than_its_name(write_trace: WriteTrace) -> None:
    assert identify(write_trace([], name="rank9.json", distributedInfo={"rank": 2})).rank == 2


def test_a_journal_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "journal.ssj").write_bytes(b"SSJ1" + b"x" * 10)
    assert identify(tmp_path / "journal.ssj").format == "journal"


def test_real_captures_are_known(shared_data: Path) -> None:
    folder = shared_data / "kineto/hta"
    old = identify(folder / "cpu_only_old/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz")
    assert (old.rank, old.world_size, old.host) == (34, 300, "twshared16453.15.atn5.facebook.com")
    assert identify(folder / "trace_diff/control/control.json.gz").rank == 3
    assert identify(folder / "rank_unavailable/rank_not_found.json.gz").rank is None


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(NotATraceError):
        identify(tmp_path / "x.json")
