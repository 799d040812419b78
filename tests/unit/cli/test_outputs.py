"""The verbs over a job of several ranks: one screen, files in `cluster/`, and those of a rank when asked for."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.cluster.job_results import JOB_RESULTS
from tests.simulator.faults import Fault
from tests.simulator.host_clocks import EPOCH
from tests.simulator.jobs import TRUTH, Simulated, simulate
from tests.simulator.shapes import Shape

SLOW = 2
FILES = sorted([*(f"{name}.csv" for name in JOB_RESULTS), "findings.json", "summary.json"])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kineto files of 4 ranks, of which one computes half as fast."""
    folder = tmp_path_factory.mktemp("traces") / "gpt"
    shape = Shape(kind="ddp", ranks=4, seed=3, steps=8, events=2000, ranks_per_host=2)
    simulate(shape, Fault("clocks", (SLOW,), 0.5)).write(folder)
    (folder / "truth.json").unlink()
    return folder


@pytest.fixture(scope="module")
def imported(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("imported")
    assert main(["import", str(traces), "--output", str(output), "--quiet"]) == 0
    (run,) = output.iterdir()
    return run


@pytest.fixture
def run(imported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(imported, tmp_path / imported.name))


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 10 ranks."""
    folder = tmp_path_factory.mktemp("ten")
    simulate(Shape(ranks=10, seed=1, steps=3, events=300)).write(folder / "gpt")
    (folder / "gpt" / "truth.json").unlink()
    assert main(["import", str(folder / "gpt"), "--output", str(folder / "runs"), "--quiet"]) == 0
    (run,) = (folder / "runs").iterdir()
    return run


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def written(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name[0] != ".")


def test_a_job_is_one_screen_and_its_first_sentence_is_the_first_finding(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    findings = json.loads((run / "cluster" / "findings.json").read_text())
    assert findings[0]["cause"] == "slow-rank"
    assert findings[0]["ranks"] == [SLOW]
    words = " ".join(text.split())
    assert findings[0]["title"] in words
    assert "stepscope gpt" in words
    assert "4 ranks on 2 hosts" in words
    assert f"stepscope report {run} --rank {SLOW}" in words
    assert f"results {run}/cluster" in words


def test_the_files_of_a_job_are_those_of_the_design(run: Path) -> None:
    assert written(run / "cluster") == FILES
    with (run / "cluster" / "clocks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["rank", "host", "offset_ns", "drift_ppm", "uncertainty_ns", "anchor", "reason"]
    assert [row["rank"] for row in rows] == ["0", "1", "2", "3"]
    with (run / "cluster" / "cluster_step_trace_time.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert {row["Type"] for row in steps} == {"rank"}
    assert len(steps) == 4 * 8
    own = stepscope.open(run).ranks[1].result("step_trace_time")
    mine = [row for row in steps if row["Index"] == "1"]
    for name in ("Total", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Idle"):
        assert [float(row[name]) for row in mine] == pytest.approx(own[name].to_list(), abs=1e-3), name
    assert {path.stat().st_mode & 0o777 for path in (run / "cluster").iterdir()} == {0o600}


def test_json_and_a_database_of_the_job(run: Path) -> None:
    assert main(["report", str(run), "--format", "json,db", "--quiet"]) == 0
    rows = json.loads((run / "cluster" / "cluster_ranks.json").read_text())
    assert [row["rank"] for row in rows] == [0, 1, 2, 3]
    assert min(rows, key=lambda row: row["speed"])["rank"] == SLOW
    with closing(sqlite3.connect(run / "cluster" / "stepscope.db")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert {*JOB_RESULTS, "ranks", "steps", "collectives", "documents"} <= tables
        (last,) = database.execute("SELECT rank FROM cluster_ranks ORDER BY times_last DESC LIMIT 1").fetchone()
        (count,) = database.execute("SELECT count(*) FROM steps").fetchone()
        documents = {name for (name,) in database.execute("SELECT name FROM documents")}
    assert last == SLOW
    assert count == 4 * 8
    assert documents == {"findings", "summary"}


def states(directory: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(directory.iterdir()):
        yield path.name, path.stat().st_mtime_ns


def test_an_unchanged_job_is_not_written_again_and_says_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    first, before = capsys.readouterr().out, [*states(run / "cluster")]
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == first
    assert [*states(run / "cluster")] == before


@pytest.mark.parametrize("name", ["findings.json", "summary.json", "clocks.csv", ".written.json"])
def test_a_damaged_file_is_made_again(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    right, screen = (run / "cluster" / name).read_bytes(), capsys.readouterr().out
    (run / "cluster" / name).write_bytes(right[:-2] + b"9}")
    assert main(["report", str(run)]) == 0
    assert (run / "cluster" / name).read_bytes() == right
    assert capsys.readouterr().out == screen


def test_a_rank_that_comes_later_changes_the_job(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    away = run.parent / "rank3"
    shutil.move(run / "rank3", away)
    assert main(["report", str(run)]) == 0
    assert "1 of 4 ranks is missing: 3." in said(capsys)
    shutil.move(away, run / "rank3")
    assert main(["report", str(run)]) == 0
    assert "missing" not in said(capsys)


def test_one_rank_of_a_job_is_shown_as_a_run_of_one_rank(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--rank", "3"]) == 0
    by_number = capsys.readouterr().out
    assert "rank 3 of 4" in by_number
    assert "operators by self time" in by_number
    assert main(["report", str(run / "rank3")]) == 0
    assert capsys.readouterr().out == by_number
    assert main(["report", str(run), "--rank", "9"]) == 2
    assert "has no rank 9. It has 4 ranks, from 0 to 3." in capsys.readouterr().err
    for nonsense in ("-1", "some"):
        with pytest.raises(SystemExit):
            main(["report", str(run), "--rank", nonsense])


def test_a_selection_of_steps_has_files_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [*states(run / "cluster")]
    first = min(stepscope.open(run).ranks[0].result("step_trace_time")["Step"])
    last = first + 1
    assert main(["report", str(run), "--steps", f"{first}-{last}"]) == 0
    assert "2 steps" in said(capsys)
    assert written(run / f"cluster_steps_{first}-{last}") == FILES
    assert [*states(run / "cluster")] == before


def test_files_of_each_rank_of_a_small_job_are_written_of_a_large_one_when_asked_for(
    run: Path, ten: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (run / "rank0" / "results" / "step_trace_time.csv").is_file()
    assert written(ten / "cluster") == FILES
    assert not (ten / "rank0" / "results").exists()
    assert main(["report", str(ten), "--format", "db", "--quiet"]) == 0
    assert (ten / "cluster" / "stepscope.db").is_file()
    assert not (ten / "rank0" / "results").exists()
    assert main(["report", str(ten), "--rank", "4", "--quiet"]) == 0
    assert [rank for rank in range(10) if (ten / f"rank{rank}" / "results").exists()] == [4]
    assert main(["report", str(ten), "--rank", "all", "--quiet"]) == 0
    assert all((ten / f"rank{rank}" / "results" / "step_trace_time.csv").is_file() for rank in range(10))
    assert capsys.readouterr().out == ""


def test_export_writes_the_job_beside_its_ranks(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", "csv", "--output", str(tmp_path / "out")]) == 0
    assert set(FILES) <= set(written(tmp_path / "out" / "cluster"))
    assert (tmp_path / "out" / "rank0" / "step_trace_time.csv").is_file()
    paths = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "out" / "cluster" / "clocks.csv") in paths


def test_check_says_what_a_job_holds_and_ends_with_3_if_its_ranks_do_not_fit(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(run)]) == 0
    text = said(capsys)
    assert "ranks 4 of 4" in text
    assert "hosts 2" in text
    assert "steps 8 steps" in text
    shutil.rmtree(run / "rank1")
    assert main(["check", str(run)]) == 3
    assert "does not fit 1 of 4 ranks is missing: 1." in said(capsys)
    assert main(["check", str(run), "--rank", "0"]) == 0
    assert "rank 0 of 4" in said(capsys)
    assert main(["check", str(run), "--rank", "all"]) == 3
    assert said(capsys).count("tables ") == 3
    shutil.copytree(run / "rank0", run / "rank7")
    assert main(["check", str(run)]) == 3
    text = said(capsys)
    assert "ranks 3 of 4" in text
    assert "steps 8 steps clocks" in text
    assert "does not fit 2 directories say that they are rank 0: rank0, rank7." in text


def test_a_rank_that_cannot_be_read_costs_that_rank_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tables", "summary.json"):
        path = run / "rank1" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for capture in (run / "rank1" / "capture").iterdir():
        capture.write_bytes(b"nonsense")
    assert main(["report", str(run)]) == 0
    printed = capsys.readouterr()
    assert "stepscope: rank1 is left out: " in printed.err
    assert "! Rank 1 cannot be read." in " ".join(printed.out.split())
    with (run / "cluster" / "cluster_ranks.csv").open() as file:
        rows = {row["rank"]: row for row in csv.DictReader(file)}
    assert rows["1"]["fault"]
    assert not rows["1"]["speed"]
    assert rows["0"]["speed"]


def test_a_job_without_a_rank_that_can_be_read_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        shutil.rmtree(run / f"rank{rank}" / "tables")
        (run / f"rank{rank}" / "summary.json").unlink()
        for capture in (run / f"rank{rank}" / "capture").iterdir():
            capture.write_bytes(b"nonsense")
    assert main(["report", str(run)]) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", ["merge", "report"])
def test_a_job_of_which_only_the_summaries_are_here(
    traces: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a job that was reduced where its files are, and files that are not here any more
    shutil.copytree(traces, tmp_path / "elsewhere")
    assert main(["reduce", str(tmp_path / "elsewhere"), "--output", str(tmp_path / "job"), "--quiet"]) == 0
    shutil.rmtree(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main([verb, str(tmp_path / "job")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"Rank {SLOW} keeps the other 3 waiting" in " ".join(printed.out.split())
    assert written(tmp_path / "job" / "cluster") == FILES
    assert not (tmp_path / "job" / "rank0" / "results").exists()


def true_waits(job: Simulated, rank: int) -> dict[int, float]:
    """Return what a rank waits in each collective until the last of its group arrives, ns, by its own start of it."""
    latest: dict[tuple[int, int], float] = {}
    mine: list[tuple[float, tuple[int, int]]] = []
    for plan, starts in zip(job.job.plans, job.times.starts, strict=True):
        for op, start in zip(plan.ops, starts, strict=True):
            for meeting in op.meetings:
                for member, when, group in zip(
                    plan.ranks.tolist(), start.tolist(), meeting.group.tolist(), strict=True
                ):
                    key = (meeting.exchange, group)
                    latest[key] = max(latest.get(key, when), when)
                    mine += [(when, key)] if member == rank else []
    shown = job.clocks[rank].shows(np.array([when for when, _ in mine]))
    return {round(at): latest[key] - when for at, (when, key) in zip(shown.tolist(), mine, strict=True)}


def test_files_of_ranks_say_what_only_the_job_knows_of_their_collectives(tmp_path: Path) -> None:
    job = simulate(
        Shape(kind="fsdp", ranks=4, seed=5, steps=4, events=1200, ranks_per_host=2), Fault("clocks", (1,), 0.3)
    )
    job.write(tmp_path / "traces")
    (tmp_path / "traces" / TRUTH).unlink()
    assert main(["import", str(tmp_path / "traces"), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    uncertainty = max(map(int, filter(None, column(run / "cluster" / "clocks.csv", "uncertainty_ns"))))
    for rank in range(4):
        path = run / f"rank{rank}" / "results" / "communication.json"
        truth = true_waits(job, rank)
        times = [
            one["Communication Time Info"]
            for step in json.loads(path.read_text()).values()
            for name, one in step["collective"].items()
            if name != "Total Op Info"
        ]
        assert len(times) == len(truth)
        starts = np.array(sorted(truth))
        for one in times:
            at = one["Start Timestamp(us)"] * 1000 - EPOCH
            wait = truth[int(starts[np.abs(starts - at).argmin()])]
            assert one["Wait Time(ms)"] == pytest.approx(wait / 1e6, abs=(2 * uncertainty + 2_000) / 1e6)
            assert one["Synchronization Time(ms)"] == one["Wait Time(ms)"]
            assert one["Transit Time(ms)"] == pytest.approx(one["Elapse Time(ms)"] - one["Wait Time(ms)"])
            assert one["Idle Time(ms)"] == pytest.approx(0, abs=1e-9)
    written_at = path.stat().st_mtime_ns
    assert main(["report", str(run), "--quiet"]) == 0
    assert path.stat().st_mtime_ns == written_at


def column(path: Path, name: str) -> list[str]:
    with path.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


@pytest.mark.parametrize("form", ["lines", "sarif", "github"])
def test_the_form_of_findings_may_be_named_as_a_format(
    run: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for words in (["--findings", form], ["--format", form], ["--findings", "--format", form]):
        assert main(["report", str(run), *words]) == 0
        said.append(capsys.readouterr().out)
    assert main(["report", "--format", form, "--findings", str(run)]) == 0
    assert {*said, capsys.readouterr().out} == {said[0]}
    assert "slow-rank" in said[0]


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (["any"], 3),
        (["slow-rank"], 3),
        (["gain:1%"], 3),
        (["gain:99.9%"], 0),
        (["data-loader-slow"], 0),
        (["data-loader-slow", "slow-rank"], 3),
    ],
)
def test_report_fails_on_the_findings_that_it_was_told_to(
    run: Path, conditions: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for condition in conditions for word in ("--fail-on", condition)]
    assert main(["report", str(run), "--quiet", *options]) == code
    assert ("stepscope: slow-rank: " in capsys.readouterr().err) is (code == 3)


@pytest.mark.parametrize("condition", ["slow-rnak", "gain:10", "gain:%", "gain", "slower:5%", "Any", ""])
def test_a_condition_that_names_nothing_is_a_usage_error(
    run: Path, condition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["report", str(run), "--fail-on", condition])
    assert error.value.code == 2
    assert f"{condition!r} is not a condition; use any, a cause such as" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", str(run), "--fail-on", "slow-rnak"])
    assert "such as slow-rank," in capsys.readouterr().err
