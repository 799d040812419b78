"""Ranks that are missing, there twice or contradictory are named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.trace.job_ranks import RankSaid, problems
from stepscope.trace.run_directory import RankDirectory

CAPTURE = Path(__file__).parents[2] / "data" / "kineto" / "alexnet_simple_add.json.gz"


def of(rank: int, size: int | None, directory: str = "", hosts: str = "") -> RankSaid:
    return RankSaid(directory or f"rank{rank}", rank, frozenset([size] if size else []), frozenset(hosts.split()))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([of(0, 1)], []),
        ([of(0, None)], []),
        ([of(0, 2), of(1, 2)], []),
        ([of(1, 2), of(0, 2)], []),
        ([of(0, 4), of(2, 4)], ["2 of 4 ranks are missing: 1, 3."]),
        ([of(3, 1_000_000_000)], ["999,999,999 of 1,000,000,000 ranks are missing: 0-2, 4-999999999."]),
        ([of(0, None), of(2, None)], ["1 rank is missing: 1."]),
        (
            [of(0, 2), of(0, 2, "rank1")],
            [
                "2 directories say that they are rank 0: rank0, rank1.",
                "rank1 says that it is rank 0.",
                "1 of 2 ranks is missing: 1.",
            ],
        ),
        (
            [of(0, 2), of(1, 3)],
            ["The ranks disagree about the number of ranks: 2 (rank0); 3 (rank1).", "1 of 3 ranks is missing: 2."],
        ),
        ([of(0, 1), of(1, 1)], ["rank1 says that it is rank 1 of 1, which has no such rank."]),
        ([of(0, 1, hosts="b a")], ["Captures of rank0 are from different machines: a, b."]),
        ([of(n, 40) for n in range(0, 40, 2)], ["20 of 40 ranks are missing: 1, 3, 5, 7, 9, 11, 13, 15 and 12 more."]),
    ],
)
def test_what_is_wrong_with_ranks(said: list[RankSaid], expected: list[str]) -> None:
    assert problems(said) == expected


def test_one_rank_alone_says_nothing_of_the_others() -> None:
    assert problems([of(2, 4)], whole=False) == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose ranks contradict each other: 0 of 4, 2 of 8, and a second directory of rank 2."""
    for number, rank, size in ((0, 0, 4), (2, 2, 8), (3, 2, 4)):
        directory = RankDirectory(tmp_path / "run" / f"rank{number}")
        directory.create()
        (directory.capture / CAPTURE.name).write_bytes(CAPTURE.read_bytes())
        directory.write_manifest({"status": "complete", "rank": rank, "world_size": size})
    return tmp_path / "run"


@pytest.mark.parametrize("verb", ["report", "check"])
def test_report_and_check_name_what_is_wrong(run: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb, str(run)]) == (3 if verb == "check" else 0)
    said = " ".join(capsys.readouterr().out.split())
    sign = "does not fit" if verb == "check" else "!"
    assert f"{sign} 2 directories say that they are rank 2: rank2, rank3." in said
    assert f"{sign} rank3 says that it is rank 2." in said
    assert f"{sign} The ranks disagree about the number of ranks: 4 (rank0, rank3); 8 (rank2)." in said
    assert f"{sign} 6 of 8 ranks are missing: 1, 3-7." in said
    assert main([verb, str(run / "rank2")]) == 0
    assert "missing:" not in capsys.readouterr().out


def test_the_only_rank_of_several_lacks_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = RankDirectory(tmp_path / "run" / "rank2")
    directory.create()
    (directory.capture / CAPTURE.name).write_bytes(CAPTURE.read_bytes())
    directory.write_manifest({"status": "complete", "rank": 2, "world_size": 4})
    assert main(["check", str(tmp_path / "run")]) == 3
    said = capsys.readouterr().out
    assert "2 of 4" in said
    assert "does not fit           3 of 4 ranks are missing: 0-1, 3." in said
    assert main(["check", str(tmp_path / "run"), "--rank", "2"]) == 0
    assert "missing:" not in capsys.readouterr().out
    # Given that nothing says how many there are, then that is not 1
    directory.write_manifest({"status": "complete", "rank": 2})
    assert main(["check", str(tmp_path / "run")]) == 0
    assert "2 of an unknown number" in capsys.readouterr().out


def test_ranks_that_an_import_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given Kineto files of ranks 0 and 3 of a job of 4
    monkeypatch.chdir(tmp_path)
    trace = json.loads(gzip.decompress(CAPTURE.read_bytes()))
    for rank in (0, 3):
        trace["distributedInfo"] = {"rank": rank, "world_size": 4}
        (tmp_path / f"trace_{rank}.json").write_text(json.dumps(trace))
    files = [str(tmp_path / f"trace_{rank}.json") for rank in (0, 3)]
    assert main(["import", *files]) == 0
    assert "! 2 of 4 ranks are missing: 1-2." in capsys.readouterr().out
