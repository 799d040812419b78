"""Perfetto's own parser reads the timeline of a whole job: every span of every rank, on the clock of the job."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.cluster.clocks import to_job_time
from stepscope.report.protocol import TimelineFormat
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.report.timeline.job_timeline import aligned
from stepscope.report.timeline.perfetto.writer import Pftrace
from stepscope.run import RankRun, Run

from .test_perfetto import ARROWS, LOST, drawable
from .trace_processor import ask

DLRM = Path(__file__).parents[3] / "shared/data/kineto/param/dlrm_kineto.tar.gz"
#: What the clock of rank 1 is ahead, in ns.
AHEAD = 4_000_000_123


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three ranks of one machine (DLRM, 2023): the clock of rank 1 is ahead by four seconds, rank 2 is silent."""
    if not DLRM.exists():
        pytest.skip(f"{DLRM.name} is not there")
    folder = tmp_path_factory.mktemp("dlrm")
    with tarfile.open(DLRM) as archive:
        archive.extractall(
            folder, filter="data", members=[one for one in archive if re.search("worker[012]_", one.name)]
        )
    [ahead], [silent] = folder.rglob("worker1_*.json"), folder.rglob("worker2_*.json")
    ahead.write_text(re.sub(r'"ts": (\d+)', lambda found: f'"ts": {int(found[1]) + AHEAD // 1000}', ahead.read_text()))
    text = re.sub("nccl|c10d::", "some", silent.read_text(), flags=re.IGNORECASE)
    silent.write_text(text.replace("all_to_all", "other").replace("allreduce", "other"))
    return stepscope.open(folder)


@pytest.mark.parametrize("output", [Pftrace(), TraceView()], ids=["pftrace", "trace"])
def test_all_ranks_are_on_one_time_line(run: Run, output: TimelineFormat, tmp_path: Path) -> None:
    clocks = stepscope.job(run).clocks
    # Both are of one machine: what rank 1 is ahead is found to some µs.
    assert abs(clocks["offset_ns"][1] + AHEAD // 1000 * 1000) < clocks["uncertainty_ns"][1] < 10_000
    [path] = output.write_ranks(aligned(run), tmp_path)
    names = "select distinct name from process where name is not null"
    slices, lost, processes, arrows = ask(path, ["select ts, dur, name from slice", LOST, names, ARROWS])
    assert lost == []
    base = 0 if output.name == "pftrace" else int(re.search(r'"baseTimeNanoseconds": (\d+)', path.read_text())[1])  # type: ignore[index]
    shown = Counter((ts + base, dur, name) for ts, dur, name in slices)
    for rank in run.ranks[:2]:
        spans = rank.shown["spans"].select(
            rank=pl.lit(rank.rank, pl.Int32),
            ts="ts",
            end=pl.col("ts") + pl.col("dur"),
            name=pl.col("name").cast(pl.String),
        )
        moved = to_job_time(spans.collect(), clocks, "ts", "end")
        assert not Counter(moved.select("ts", pl.col("end") - pl.col("ts"), "name").iter_rows()) - shown
        error = clocks["uncertainty_ns"][rank.rank] / 1000
        assert (f"rank {rank.rank} · ± {error:.1f} µs: cpu",) in processes
    assert len(arrows) == sum(drawable(rank.shown).total() for rank in run.ranks)


def test_a_rank_without_a_clock_says_so_and_begins_with_the_others(run: Run) -> None:
    *known, silent = aligned(run)
    assert silent.label == "rank 2 · not aligned: it shares no collective with another rank"
    begins = [one.tables["spans"].select(pl.col("ts").min()).collect().item() for one in (*known, silent)]
    assert abs(begins[2] - min(begins[:2])) < 1_000_000


@pytest.mark.parametrize("output", [Pftrace(), TraceView()], ids=["pftrace", "trace"])
def test_the_timeline_of_a_job_is_read_again_as_its_ranks(run: Run, output: TimelineFormat, tmp_path: Path) -> None:
    def work(rank: RankRun) -> Counter[str]:
        spans = rank.tables["spans"].filter(pl.col("kind").cast(pl.String).is_in(["kernel", "collective", "memcpy"]))
        return Counter(spans.select(pl.col("name").cast(pl.String)).collect()["name"])

    [path] = output.write_ranks(aligned(run), tmp_path)
    again = stepscope.open(path).ranks
    assert [rank.rank for rank in again] == [0, 1, 2]
    for rank, recorded in zip(again, run.ranks, strict=True):
        assert work(rank) == work(recorded)
        assert set(rank.tables["tracks"].collect()["rank"]) == {rank.rank}


def test_an_imported_timeline_of_a_job_is_a_run_of_its_ranks(run: Run, tmp_path: Path) -> None:
    [path] = TraceView().write_ranks(aligned(run), tmp_path)
    assert main(["import", str(path), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    counts = [rank.tables["spans"].select(pl.len()).collect().item() for rank in Run(made).ranks]
    assert counts == [rank.tables["spans"].select(pl.len()).collect().item() for rank in stepscope.open(path).ranks]


@pytest.mark.parametrize("output", [Pftrace(), TraceView()], ids=["pftrace", "trace"])
def test_what_a_rank_did_not_record_is_not_there_when_its_timeline_is_read_again(
    output: TimelineFormat, shared_data: Path, tmp_path: Path
) -> None:
    """Given a rank without its timeline, which has no copies and no host, beside a whole one."""
    job = Path(shutil.copytree(shared_data / "ascend/text_level2", tmp_path / "job"))
    (job / "rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json").unlink()
    recorded = stepscope.open(job)
    [path] = output.write_ranks(aligned(recorded), tmp_path)
    for rank, again in zip(recorded.ranks, stepscope.open(path).ranks, strict=True):
        assert again.summary.not_recorded == rank.summary.not_recorded
