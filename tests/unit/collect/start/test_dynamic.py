"""Windows asked for by editing a file: the right steps, in every rank or in none, whoever is slow."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.collect.ranks import LAUNCHERS, JobRank
from stepscope.collect.start.agreement import NOTHING, Agreement, Proposal
from stepscope.collect.start.dynamic import CONFIG
from stepscope.errors import UsageError
from tests.frameworks.left_behind import open_files, threads
from tests.sizes import first_quick
from tests.unit.collect.reading import read_journal


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in LAUNCHERS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def monitors(tmp_path: Path) -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for monitor in made:
        monitor.close()
        for recorded in monitor.recorded:
            recorded.wait()


def edit(folder: Path, **switches: object) -> None:
    """Change the file as a user does, at a time that differs from the last one."""
    path = folder / CONFIG
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **switches}))


def monitor(folder: Path, made: list[Any], **arguments: Any) -> stepscope.dynamic:
    made.append(stepscope.dynamic(folder, output=folder / "runs", **{"poll_interval": 1e-9, **arguments}))
    return made[-1]


def steps(monitor: stepscope.dynamic) -> list[list[int]]:
    """Return the numbers of the steps of every window."""
    for recorded in monitor.recorded:
        recorded.wait()
    journals = [read_journal(recorded.rank_path / "capture" / "journal.ssj") for recorded in monitor.recorded]
    return [sorted(journal.frames["steps"]["number"].to_list()) for journal in journals]


def iterations(monitor: stepscope.dynamic, first: int, last: int) -> None:
    for number in range(first, last + 1):
        with stepscope.span(f"iteration {number}"):
            pass
        monitor.step()


def test_a_monitor_that_is_dropped_leaves_neither_thread_nor_file(tmp_path: Path) -> None:
    def train() -> Path:
        edit(tmp_path, start_step=2, stop_step=3)
        monitor = stepscope.dynamic(tmp_path, output=tmp_path / "runs", poll_interval=1e-9)
        iterations(monitor, 1, 6)
        (recorded,) = monitor.recorded
        recorded.wait()
        assert "stepscope-steps" in threads()
        return recorded.rank_path / "capture" / "steps.ssj"

    before = threads()
    path = train()
    assert threads() == before
    assert path not in open_files()
    assert read_journal(path).frames["run_steps"]["number"].to_list() == [1, 2, 3, 4, 5, 6]


def test_the_last_steps_of_a_program_that_ends_are_written(tmp_path: Path) -> None:
    edit(tmp_path, start_step=2, stop_step=3)
    code = "import stepscope\nmonitor = stepscope.dynamic('.', output='runs')\nfor _ in range(9): monitor.step()"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    (path,) = tmp_path.glob("runs/*/rank0/capture/steps.ssj")
    assert read_journal(path).frames["run_steps"]["number"].to_list() == list(range(1, 10))


def test_a_new_file_holds_every_key_of_the_documents(tmp_path: Path, monitors: list[Any]) -> None:
    monitor(tmp_path / "new", monitors)
    assert json.loads((tmp_path / "new" / CONFIG).read_text()) == {
        "start_step": -1,
        "stop_step": -1,
        "aic_metrics": "AiCoreNone",
        "profiler_level": "Level0",
        "analyse_mode": -1,
        "activities": ["CPU", "NPU"],
        "export_type": ["text"],
        "profile_memory": False,
        "mstx": False,
        "parallel_strategy": False,
        "with_stack": False,
        "data_simplification": True,
        "l2_cache": False,
        "analyse": False,
        "record_shapes": False,
        "prof_path": "./",
        "mstx_domain_include": [],
        "mstx_domain_exclude": [],
        "host_sys": [],
        "sys_io": False,
        "sys_interconnection": False,
    }


@pytest.mark.parametrize(("start", "stop"), [(1, 1), (1, 3), (2, 2), (2, 3), (3, 4), (7, 9)])
def test_the_steps_that_are_asked_for_before_the_job(
    tmp_path: Path, monitors: list[Any], start: int, stop: int
) -> None:
    # Given
    edit(tmp_path, start_step=start, stop_step=stop)
    watched = monitor(tmp_path, monitors)
    # When
    iterations(watched, 1, 12)
    # Then the steps have their numbers, and hold what happened in the iterations of that number
    assert steps(watched) == [list(range(start, stop + 1))]
    journal = read_journal(watched.recorded[0].rank_path / "capture" / "journal.ssj")
    assert [span["name"] for span in journal.spans if span["kind"] == "annotation"] == [
        f"iteration {number}" for number in range(start, stop + 1)
    ]
    assert journal.counted == {}


def test_windows_of_a_running_job(tmp_path: Path, monitors: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 4)
    edit(tmp_path, start_step=8, stop_step=9)
    iterations(watched, 5, 10)
    edit(tmp_path, start_step=9, stop_step=12)
    iterations(watched, 11, 13)
    edit(tmp_path, start_step=20, stop_step=19)
    iterations(watched, 14, 15)
    edit(tmp_path, start_step=5, stop_step=30)
    iterations(watched, 16, 17)
    assert [record.getMessage().partition(f"{CONFIG}: ")[2] for record in caplog.records] == [
        "start_step 9, stop_step 12: a window must begin after the last step of the one before it, which is 9.",
        "start_step 20, stop_step 19: stop_step is before start_step.",
        "start_step 5, stop_step 30: a window must begin after the last step of the one before it, which is 9.",
    ]
    edit(tmp_path, start_step=30, stop_step=31)
    iterations(watched, 18, 20)
    edit(tmp_path, start_step=-1)
    iterations(watched, 21, 40)
    assert steps(watched) == [[8, 9]]


def test_a_step_that_has_passed(tmp_path: Path, monitors: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 6)
    edit(tmp_path, start_step=3, stop_step=9)
    iterations(watched, 7, 7)
    (record,) = caplog.records
    assert record.getMessage().endswith("start_step 3, stop_step 9: step 8 has begun; name a later one.")


def test_a_file_that_is_half_written(tmp_path: Path, monitors: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    # Given a file that is cut when it is looked at first, and whole at the second look
    watched = monitor(tmp_path, monitors)
    (tmp_path / CONFIG).write_text('{"start_step": 5, "stop')
    iterations(watched, 1, 1)
    edit_whole = json.dumps({"start_step": 5, "stop_step": 5})
    (tmp_path / CONFIG).write_text(edit_whole)
    iterations(watched, 2, 6)
    assert steps(watched) == [[5]]
    assert caplog.records == []
    # and one that stays so
    (tmp_path / CONFIG).write_text("{")
    iterations(watched, 7, 12)
    (record,) = caplog.records
    assert "is not JSON" in record.getMessage()


def test_wrong_types_are_one_warning_each(
    tmp_path: Path, monitors: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    edit(tmp_path, start_step=2, stop_step=2, profile_memory="yes", aic_metrics=[1])
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 5)
    assert [record.getMessage().partition(f"{CONFIG}: ")[2].partition(",")[0] for record in caplog.records] == [
        "'profile_memory' should be true or false",
        "'aic_metrics' should be PipeUtilization | ArithmeticUtilization | Memory | MemoryL0 | MemoryUB | "
        "ResourceConflictRatio | L2Cache | MemoryAccess | None | AiCoreNone (or 0",
    ]
    assert steps(watched) == [[2]]


def test_a_directory_of_its_own(tmp_path: Path, monitors: list[Any]) -> None:
    edit(tmp_path, start_step=1, stop_step=1, prof_path=str(tmp_path / "elsewhere"))
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 2)
    assert watched.recorded[0].path.parent == tmp_path / "elsewhere"


def test_the_manifest_says_who_asked(tmp_path: Path, monitors: list[Any]) -> None:
    edit(tmp_path, start_step=1, stop_step=2, l2_cache=True)
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 2)
    manifest = watched.recorded[0].manifest
    assert manifest["door"] == "profiler_config.json"
    assert manifest["schedule"] == f"steps 1 to 2, requested in {tmp_path / CONFIG}"
    assert manifest["steps"] == {"source": "declared", "by": "the dynamic profiler", "recorded": 2}
    assert list(manifest["switches_unavailable"]) == ["l2_cache"]


def test_it_gives_way_to_a_profile_that_runs(
    tmp_path: Path, monitors: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    edit(tmp_path, start_step=2, stop_step=3)
    watched = monitor(tmp_path, monitors)
    with stepscope.profile(output=tmp_path / "own", analyse="later"):
        iterations(watched, 1, 5)
    assert watched.recorded == []
    assert "Another stepscope profile is running" in caplog.text


def test_no_thread_and_no_process_is_left(tmp_path: Path, monitors: list[Any]) -> None:
    before = threads()
    edit(tmp_path, start_step=2, stop_step=2)
    watched = monitor(tmp_path, monitors)
    assert threads() <= before
    iterations(watched, 1, 4)
    assert steps(watched) == [[2]]
    deadline = time.monotonic() + 10
    while threads().total() > before.total() + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    # Then only those are left that write the times of steps and look at stacks, up to the end
    assert threads() - before == {"stepscope-steps": 1, "stepscope-stack": 1}
    watched.close()
    assert threads() <= before
    assert multiprocessing.active_children() == []


def test_the_end_of_the_job_closes_the_window(tmp_path: Path, monitors: list[Any]) -> None:
    edit(tmp_path, start_step=2, stop_step=100)
    watched = monitor(tmp_path, monitors)
    iterations(watched, 1, 4)
    assert watched.recording
    watched.close()
    assert steps(watched) == [[2, 3, 4]]
    assert watched.recorded[0].manifest["losses"] == {"steps_not_recorded": 96}


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_a_wrong_interval(tmp_path: Path, interval: float) -> None:
    with pytest.raises(UsageError, match="positive number of seconds"):
        stepscope.dynamic(tmp_path, poll_interval=interval)


# Several ranks


def test_all_ranks_read_the_same_verdict(tmp_path: Path) -> None:
    """Whoever comes first decides, and a rank that comes in the same moment reads what that one wrote."""
    sides = [Agreement(tmp_path, JobRank(rank, 8, rank, "torchrun")) for rank in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for round_ in range(40):
            proposal = sides[0].propose(Proposal(10, 12, {}))
            # all ranks answer, or the last one is still on its way when the first ones decide
            for side in sides[: 8 - round_ % 2]:
                assert side.answer(proposal, 3)
            verdicts = list(pool.map(lambda side, proposal=proposal: side.decide(proposal), sides))  # type: ignore[misc]
            assert len(set(verdicts)) == 1
            assert verdicts[0] is (round_ % 2 == 0)


def test_an_answer_that_comes_too_late(tmp_path: Path) -> None:
    first, second = (Agreement(tmp_path, JobRank(rank, 2, rank, "torchrun")) for rank in range(2))
    proposal = first.propose(Proposal(10, 12, {}))
    assert first.answer(proposal, 9)
    assert not second.answer(proposal, 10)
    assert first.late(proposal) == 10
    assert not first.decide(proposal)
    assert second.refused(proposal)


def test_what_an_earlier_job_left_is_not_followed(tmp_path: Path) -> None:
    # Given a proposal by a process that has ended
    first, second = (Agreement(tmp_path, JobRank(rank, 2, rank, "torchrun")) for rank in range(2))
    first.propose(Proposal(10, 12, {}))
    (path,) = tmp_path.rglob("proposal.json")
    document = json.loads(path.read_text())
    document["author"][2] = "1"
    path.write_text(json.dumps(document))
    assert second.news() is None
    # When rank 0 of this job comes, nothing of it is left
    Agreement(tmp_path, JobRank(0, 2, 0, "torchrun"))
    assert list(tmp_path.rglob("proposal.json")) == []
    first.propose(NOTHING)
    assert second.wait_for_opening(0)
    assert second.news() is None


def _rank(folder: Path, rank: int, pause: float, start: int, together: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), STEPSCOPE_RUN_ID="job")
    logging.getLogger("stepscope").setLevel(logging.ERROR)
    watched = stepscope.dynamic(folder, output=folder / "runs", poll_interval=0.02)
    together.wait(60)  # as ranks that train together begin
    for number in range(1, 121):
        time.sleep(pause)
        if rank == 0 and number == 3:
            edit(folder, start_step=start, stop_step=start + 2)
        watched.step()
    for recorded in watched.recorded:
        recorded.wait()
    (folder / f"rank{rank}.json").write_text(
        json.dumps({"steps": steps(watched), "runs": [str(recorded.path) for recorded in watched.recorded]})
    )


@pytest.mark.parametrize(
    ("pauses", "start"),
    first_quick([((0.01, 0.01), 30), ((0.01, 0.03), 30), ((0.03, 0.01), 30), ((0.01, 0.01), 7), ((0.03, 0.02), 5)], 2),
    ids=["equal", "rank 1 slower", "rank 0 slower", "soon", "at once"],
)
def test_two_ranks_record_the_same_steps(tmp_path: Path, pauses: tuple[float, float], start: int) -> None:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    ranks = [
        context.Process(target=_rank, args=(tmp_path, rank, pause, start, together))
        for rank, pause in enumerate(pauses)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    # the same three steps, in one run; those that were named, or later ones where a rank could not know in time
    assert first == second
    ((begin, _, end),) = first["steps"]
    assert end == begin + 2
    assert begin >= start
    assert len(first["runs"]) == 1
