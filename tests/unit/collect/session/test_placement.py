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
    print(create_rank_directory(Path(sys.argv[1]), "train", find_job_rank()).path, flush=True)
sys.stdin.read()
"""

LATE = """
import sys
from pathlib import Path
from stepscope.collect.ranks import JobRank, find_job_rank
from stepscope.collect.session.placement import create_rank_directory, move_to_job
alone = create_rank_directory(Path(sys.argv[1]), "train", JobRank())
rank = find_job_rank()
(alone.capture / "journal.ssj").write_text(str(rank.rank))
print(move_to_job(alone, "train", rank).path, flush=True)
sys.stdin.read()
"""


def start_rank(
    output: Path, rank: int, world: int, windows: int = 1, *wrapper: str, code: str = CHILD
) -> subprocess.Popen[str]:
    """Start a rank, which lives until its standard input is closed."""
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)}
    command = [*wrapper, sys.executable, "-c", code, str(output), str(windows)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def directories_of(ranks: list[subprocess.Popen[str]], windows: int = 1) -> list[list[Path]]:
    """Return where each rank writes its next windows, and let all of them end."""
    found = [[place(rank) for _ in range(windows)] for rank in ranks]
    for rank in ranks:
        rank.communicate(timeout=300)
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
    return found


def place(rank: subprocess.Popen[str]) -> Path:
    """Return where a rank writes its window, once it has made the directory."""
    assert rank.stdout is not None
    return Path(rank.stdout.readline().rstrip("\n"))


def test_ranks_meet_in_one_directory_for_every_window(tmp_path: Path) -> None:
    # When four processes of one parent each open three windows, at the same time
    paths = directories_of([start_rank(tmp_path, rank, 4, windows=3) for rank in range(4)], windows=3)
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


def test_a_rank_does_not_join_a_job_whose_first_rank_was_killed(tmp_path: Path) -> None:
    # Given a run of two ranks of which only the first came, and was killed
    first = start_rank(tmp_path, 0, 2)
    alone = place(first)
    first.kill()
    first.communicate()
    # When ranks come again, they belong to another job
    second = [start_rank(tmp_path, rank, 2) for rank in (1, 0)]
    paths = [place(rank) for rank in second]
    assert paths[0].parent == paths[1].parent != alone.parent
    # and no job file stays
    directories_of(second, 0)
    assert not list(tmp_path.glob(".job-*"))


def test_a_rank_of_a_running_job_joins_whenever_it_comes(tmp_path: Path) -> None:
    first = start_rank(tmp_path, 0, 2)
    path = place(first)
    hour_ago = time.time() - 3600
    (meeting,) = tmp_path.glob(".job-*.0")
    os.utime(meeting, (hour_ago, hour_ago))
    second = start_rank(tmp_path, 1, 2)
    assert place(second).parent == path.parent
    # The file has gone, because the job is complete
    assert not list(tmp_path.glob(".job-*"))
    directories_of([first, second], 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "node7"])
def test_ranks_behind_wrappers_meet_by_the_address_of_their_master(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given ranks that have nothing in common but the address, each the child of a shell, a second apart
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", "29500")
    wrapper = ("/bin/sh", "-c", '"$@"; exit $?', "wrapper")
    first = start_rank(tmp_path, 0, 2, 2, *wrapper)
    alone = place(first)
    time.sleep(1)
    second = start_rank(tmp_path, 1, 2, 2, *wrapper)
    assert place(second).parent == alone.parent
    (again,), (other,) = directories_of([first, second])
    assert again.parent == other.parent != alone.parent
    assert not list(tmp_path.glob(".job-*"))


#: What launchers set for a rank of two; the job has a number. None of them starts the ranks as children of one process.
LAUNCHED = {
    "torchrun": {"RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "{rank}", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": "2950{job}", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"},
    "accelerate": {"RANK": "{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "{rank}", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "2950{job}", "ACCELERATE_MIXED_PRECISION": "no"},
    "deepspeed": {"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "2", "RANK": "{rank}", "WORLD_SIZE": "2",
                  "LOCAL_RANK": "{rank}", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2950{job}"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
               "PMIX_NAMESPACE": "prterun-node-{job}@1"},
    "srun": {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
             "SLURM_JOB_ID": "8{job}", "SLURM_STEP_ID": "0"},
    "msrun": {"RANK_ID": "{rank}", "RANK_SIZE": "2", "DEVICE_ID": "{rank}", "MS_SCHED_HOST": "127.0.0.1",
              "MS_SCHED_PORT": "811{job}"},
    "paddle": {"PADDLE_TRAINER_ID": "{rank}", "PADDLE_TRAINERS_NUM": "2",
               "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:607{job},127.0.0.1:608{job}"},
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_two_jobs_at_once_have_a_directory_each_whatever_launched_them(tmp_path: Path, launcher: str) -> None:
    """Given the ranks of two jobs, each behind a shell of its own, then those of one job meet."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI", "OMPI_"))}
    ranks = [
        subprocess.Popen(
            ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", CHILD, str(tmp_path), "1"],
            env={**plain, **{key: value.format(rank=rank, job=job) for key, value in LAUNCHED[launcher].items()}},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank, job in ((0, 1), (1, 2), (1, 1), (0, 2))
    ]  # fmt: skip
    (zero, one_of_other, one, zero_of_other), *_ = zip(*directories_of(ranks), strict=True)
    assert (zero.name, one.name) == ("rank0", "rank1")
    assert (zero.parent, zero_of_other.parent) == (one.parent, one_of_other.parent)
    assert zero.parent != zero_of_other.parent


def test_a_rank_that_comes_when_the_first_one_has_ended_joins_it(tmp_path: Path) -> None:
    ((first,),) = directories_of([start_rank(tmp_path, 0, 2)])
    assert not list(tmp_path.glob(".job-*"))
    ((second,),) = directories_of([start_rank(tmp_path, 1, 2)])
    assert first.parent == second.parent
    assert sorted(path.name for path in first.parent.iterdir()) == ["rank0", "rank1"]


def test_a_rank_that_comes_much_later_belongs_to_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((first,),) = directories_of([start_rank(tmp_path, 0, 2)])
    minute_ago = time.time() - 60
    os.utime(first.parent / ".job", (minute_ago, minute_ago))
    assert directories_of([start_rank(tmp_path, 1, 2)])[0][0].parent != first.parent
    # but where the launcher names the job
    monkeypatch.setenv("STEPSCOPE_RUN_ID", "job")
    ((first,),) = directories_of([start_rank(tmp_path, 0, 2)])
    os.utime(first.parent / ".job", (minute_ago, minute_ago))
    assert directories_of([start_rank(tmp_path, 1, 2)])[0][0].parent == first.parent


def test_a_process_that_joins_its_job_late_moves_there(tmp_path: Path) -> None:
    # When two processes that record alone get their ranks
    ranks = [start_rank(tmp_path, number, 2, code=LATE) for number in range(2)]
    joined = [place(rank) for rank in ranks]
    directories_of(ranks, 0)
    # Then there is one run, with what they recorded
    (run,) = tmp_path.iterdir()
    assert joined == [run / "rank0", run / "rank1"]
    assert [(path / "capture" / "journal.ssj").read_text() for path in joined] == ["0", "1"]


def test_single_processes_never_share_a_directory(tmp_path: Path) -> None:
    paths = [create_rank_directory(tmp_path, "train", JobRank()).path for _ in range(5)]
    assert len(set(paths)) == 5
    assert {path.name for path in paths} == {"rank0"}
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o700}


@pytest.mark.parametrize("hostile", ["../../etc\n", "/etc/passwd\n", ".\n", "\n"])
def test_a_hostile_meeting_file_leads_nowhere_else(tmp_path: Path, hostile: str) -> None:
    # Given a job file for the ranks' meeting that another user has written to
    first = start_rank(tmp_path, 0, 2)
    place(first)
    (meeting,) = tmp_path.glob(".job-*.0")
    meeting.write_text(hostile + meeting.read_text().partition("\n")[2])
    # When a rank comes, then it makes a new run inside the output directory
    second = start_rank(tmp_path, 1, 2)
    assert place(second).parent.parent == tmp_path
    directories_of([first, second], 0)


@pytest.mark.parametrize(
    ("text", "name"),
    [("train", "train"), ("a b/c", "a_b_c"), ("..", "run"), ("", "run"), ("x" * 300, "x" * 100), ("训练", "训练")],
)
def test_names_of_runs_are_harmless(text: str, name: str) -> None:
    assert as_file_name(text) == name


def test_the_directory_of_runs_is_made_with_its_parents(tmp_path: Path) -> None:
    rank = create_rank_directory(tmp_path / "not" / "there", "train", JobRank())
    assert rank.capture.is_dir()
    assert (tmp_path / "not").stat().st_mode & 0o777 == 0o700
