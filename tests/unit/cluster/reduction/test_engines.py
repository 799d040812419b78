"""Engines: each gives the same results, and a worker that is killed costs what it worked on; Dask is a real cluster."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stepscope.cluster.reduction import engines
from stepscope.cluster.reduction.engines import Engine, share
from stepscope.cluster.reduction.reduce_job import SECTION, reduce_job, reduce_rank, works_at
from stepscope.errors import UsageError
from stepscope.run import RankRun
from stepscope.trace.run_directory import RankDirectory
from tests.children import children_with

WORK = """
import os, signal, time
from pathlib import Path
from stepscope.errors import UsageError

def squared(number: int) -> bytes:
    return str(number * number).encode()


def kills_at_seven(number: int) -> bytes:
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def killed_once(number: int) -> bytes:
    "Kill the first process that is asked for 3; the file of this name remembers it."
    mark = Path(os.environ["STEPSCOPE_TEST_MARK"])
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(number)


def prints(number: int) -> bytes:
    print("a reader that prints")
    os.write(1, b"and one in C")
    return squared(number)


def sleeps_long(number: int) -> bytes:
    time.sleep(0 if number == 0 else 60)
    return squared(number)


def opens_nothing(number: int) -> bytes:
    return Path("/nowhere/at/all").read_bytes()


def refuses(number: int) -> bytes:
    message = "refused"
    raise UsageError(message, "Do not.")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that our processes can import."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "work_of_engines.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("work_of_engines")
    del sys.modules["work_of_engines"]


def squares(count: int) -> dict[int, bytes]:
    return {place: str(place * place).encode() for place in range(count)}


def test_processes_give_what_serial_gives(work: ModuleType) -> None:
    assert dict(Engine("serial").map(work.squared, range(20))) == squares(20)
    assert dict(Engine("processes", workers=3).map(work.squared, range(20))) == squares(20)


def test_a_killed_process_costs_what_it_worked_on(work: ModuleType) -> None:
    found = dict(Engine("processes", workers=2).map(work.kills_at_seven, range(12)))
    assert found[7] == "The process that read it was killed (signal 9: the machine may have run out of memory)."
    assert {**found, 7: b"49"} == squares(12)


def test_what_a_killed_process_worked_on_is_tried_again(
    work: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_TEST_MARK", str(tmp_path / "mark"))
    assert dict(Engine("processes", workers=2).map(work.killed_once, range(5))) == squares(5)
    assert (tmp_path / "mark").exists()


def test_what_a_reader_prints_does_not_reach_the_results(work: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert dict(Engine("processes", workers=1).map(work.prints, [4])) == {0: b"16"}
    out, err = capfd.readouterr()
    assert (out, "a reader that prints" in err, "and one in C" in err) == ("", True, True)


def test_an_error_of_the_function_is_raised_here(work: ModuleType) -> None:
    with pytest.raises(UsageError, match="refused"):
        list(Engine("processes", workers=1).map(work.refuses, [1]))


def test_no_process_stays_behind(work: ModuleType) -> None:
    ranks = Engine("processes", workers=2).map(work.squared, range(50))
    next(ranks)
    assert children_with("stepscope.cluster.reduction.engines")
    ranks.close()  # type: ignore[attr-defined]
    assert not children_with("stepscope.cluster.reduction.engines")


def test_who_stops_waiting_does_not_wait_for_what_runs(work: ModuleType) -> None:
    ranks = Engine("processes", workers=2).map(work.sleeps_long, range(6))
    next(ranks)
    began = time.monotonic()
    ranks.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 30
    assert not children_with("stepscope.cluster.reduction.engines")


def test_an_error_of_a_file_is_not_a_killed_process(work: ModuleType) -> None:
    with pytest.raises(FileNotFoundError):
        list(Engine("processes", workers=1).map(work.opens_nothing, [1]))


def test_shards_are_all_work_once() -> None:
    work = list(range(11))
    shards = [share(work, (number, 3)) for number in range(3)]
    assert sorted(one for shard in shards for one in shard) == work
    assert shards[1] == [1, 4, 7, 10]


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="not an engine"):
        Engine("ray").map(len, [b""])  # type: ignore[arg-type]


class Cluster:
    """A scheduler and some workers."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        directory.mkdir()
        self._directory, self.address = directory, directory / "scheduler.json"
        self.scheduler = self._started("scheduler", "--scheduler-file", str(self.address), "--port", "0")
        named = ("--scheduler-file", str(self.address), "--nthreads", "1", "--no-nanny", "--no-dashboard")
        self.workers = [self._started("worker", *named) for _ in range(workers)]

    def _started(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--host", "127.0.0.1", *arguments]
        with (self._directory / f"{what}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)

    def engine(self) -> Engine:
        from distributed import Client

        limit = time.monotonic() + 60
        while not self.address.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        with Client(scheduler_file=str(self.address), set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=300)
            return Engine("dask", scheduler=client.scheduler.address)

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="Dask is not installed; `make test` installs it")
    started = Cluster(tmp_path / "dask")
    yield started
    started.end()


def test_workers_of_dask_give_the_same_bytes_and_one_of_them_may_be_killed(
    cluster: Cluster, dlrm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = cluster.engine()
    reduce_job([str(dlrm)], tmp_path / "serial", engine=Engine("serial"))
    assert reduce_job([str(dlrm)], tmp_path / "dask_job", engine=engine) == (8, {})
    for path in (tmp_path / "serial").glob("rank*/summary.json"):
        assert (tmp_path / "dask_job" / path.parent.name / path.name).read_bytes() == path.read_bytes()

    # When one worker is killed after the first result, the other does its work
    works = works_at([str(dlrm)])[:4] * 3
    results = engine.map(reduce_rank, works)
    found = [next(results)]
    cluster.workers[0].kill()
    found += results
    expected = dict(Engine("serial").map(reduce_rank, works[:4]))
    assert len(found) == 12
    assert all(result == expected[place % 4] for place, result in found)

    # When none is left, every rank says so
    cluster.workers[1].kill()
    monkeypatch.setattr(engines, "SILENCE_S", 1)
    assert dict(engine.map(reduce_rank, works[:2])) == dict.fromkeys(range(2), "No worker of Dask is left.")


@pytest.mark.slow
def test_a_rank_that_kills_each_worker_of_dask_that_reads_it_costs_itself(
    work: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask gives up a piece of work that four workers died of."""
    pytest.importorskip("distributed", reason="Dask is not installed; `make test` installs it")
    path = os.pathsep.join(filter(None, [str(tmp_path / "modules"), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    cluster = Cluster(tmp_path / "dask", workers=5)
    try:
        found = dict(cluster.engine().map(work.kills_at_seven, range(12)))
    finally:
        cluster.end()
    assert found[7] == "Dask lost the workers that read it (KilledWorker)."
    assert {**found, 7: b"49"} == squares(12)


@pytest.mark.slow
def test_the_verb_reduces_on_dask_though_a_worker_is_killed_that_has_work(
    cluster: Cluster, dlrm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given paths from here, which mean other files where the workers run."""
    scheduler = str(cluster.engine().scheduler)
    shutil.copytree(dlrm, tmp_path / "here" / "traces")
    monkeypatch.chdir(tmp_path / "here")
    command = [sys.executable, "-m", "stepscope", "reduce", "traces", "-o", "job", "--keep", "--engine", "dask"]
    # The worker that stands still has ranks, and gives none back.
    cluster.workers[0].send_signal(signal.SIGSTOP)
    with subprocess.Popen([*command, "--scheduler", scheduler]) as reducing:
        try:
            limit = time.monotonic() + 120
            while not list(Path("job").glob("rank*/summary.json")) and time.monotonic() < limit:
                time.sleep(0.05)
            assert reducing.poll() is None, "it waits for the ranks of the worker that stands still"
            cluster.workers[0].kill()
            assert reducing.wait(timeout=120) == 0
        finally:
            reducing.kill()
    assert reduce_job(["traces"], Path("job"), engine=Engine("serial"), keep=True) == (0, {})
    reduce_job(["traces"], Path("serial"), engine=Engine("serial"))
    made, expected = (
        {rank.name: RankRun(RankDirectory(rank)).kept_section(SECTION) for rank in Path(job).iterdir()}
        for job in ("job", "serial")
    )
    assert len(expected) == 8
    assert made == expected


def test_a_scheduler_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed; `make test` installs it")
    monkeypatch.setattr(engines, "CONNECT_S", 1)
    with pytest.raises(UsageError, match="cannot be reached"):
        list(Engine("dask", scheduler="tcp://127.0.0.1:9").map(reduce_rank, []))
    with pytest.raises(UsageError, match="address of Dask's scheduler"):
        list(Engine("dask").map(reduce_rank, []))
