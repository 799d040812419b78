"""Ranks meet in one directory without talking; nothing that exists is written into."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepscope.collect.ranks import JobRank
from stepscope.collect.session.placement import as_file_name, create_rank_directory

CHILD = """
import sys
from pathlib import Path
from stepscope.collect.session.placement import create_rank_directory
from stepscope.collect.ranks import find_job_rank
for _ in range(int(sys.argv[2])):
    print(create_rank_directory(Path(sys.argv[1]), "train", find_job_rank()).path)
"""


def start_rank(output: Path, rank: int, world: int, windows: int = 1) -> subprocess.Popen[str]:
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)}
    command = [sys.executable, "-c", CHILD, str(output), str(windows)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def directories_of(ranks: list[subprocess.Popen[str]]) -> list[list[Path]]:
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
    return [[Path(line) for line in output.splitlines()] for output in outputs]


def directory_of(output: Path, rank: int) -> Path:
    """Return where one of two ranks writes its window, in a process that has made no directory before."""
    ((path,),) = directories_of([start_rank(output, rank, 2)])
    return path


def test_ranks_meet_in_one_directory_for_every_window(tmp_path: Path) -> None:
    # When four processes of one parent each open three windows, at the same time
    paths = directories_of([start_rank(tmp_path, rank, 4, windows=3) for rank in range(4)])
    # Then each window has one directory with four ranks in it
    for window in range(3):
        runs = {rank_paths[window].parent for rank_paths in paths}
        assert len(runs) == 1
        assert sorted(path.name for path in runs.pop().iterdir()) == ["rank0", "rank1", "rank2", "rank3"]


def test_a_second_job_of_the_same_parent_has_a_directory_of_its_own(tmp_path: Path) -> None:
    first = directories_of([start_rank(tmp_path, rank, 2) for rank in range(2)])
    second = directories_of([start_rank(tmp_path, rank, 2) for rank in range(2)])
    assert first[0][0].parent == first[1][0].parent
    assert second[0][0].parent == second[1][0].parent != first[0][0].parent


def test_a_rank_does_not_join_a_job_that_nobody_named_long_ago(tmp_path: Path) -> None:
    # Given a run of two ranks of which only the first came, an hour ago
    alone = directory_of(tmp_path, 0)
    hour_ago = time.time() - 3600
    (meeting,) = tmp_path.glob(".job-*.0")
    os.utime(meeting, (hour_ago, hour_ago))
    # When a second rank comes, it belongs to another job
    assert directory_of(tmp_path, 1).parent != alone.parent


def test_a_rank_of_a_named_job_joins_whenever_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_RUN_ID", "job")
    first = directory_of(tmp_path, 0)
    hour_ago = time.time() - 3600
    (meeting,) = tmp_path.glob(".job-*.0")
    os.utime(meeting, (hour_ago, hour_ago))
    assert directory_of(tmp_path, 1).parent == first.parent


def test_single_processes_never_share_a_directory(tmp_path: Path) -> None:
    paths = [create_rank_directory(tmp_path, "train", JobRank()).path for _ in range(5)]
    assert len(set(paths)) == 5
    assert {path.name for path in paths} == {"rank0"}
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o700}


@pytest.mark.parametrize("hostile", ["../../etc\n", "/etc/passwd\n", ".\n", "\n"])
def test_a_hostile_meeting_file_leads_nowhere_else(tmp_path: Path, hostile: str) -> None:
    # Given a job file for the ranks' next meeting that another user has written to
    directory_of(tmp_path, 0)
    (meeting,) = tmp_path.glob(".job-*.0")
    meeting.write_text(hostile)
    # When a rank comes, then it makes a new run inside the output directory
    assert directory_of(tmp_path, 1).parent.parent == tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [("train", "train"), ("a b/c", "a_b_c"), ("..", "run"), ("", "run"), ("x" * 300, "x" * 100), ("训练", "训练")],
)
def test_names_of_runs_are_harmless(text: str, name: str) -> None:
    assert as_file_name(text) == name
