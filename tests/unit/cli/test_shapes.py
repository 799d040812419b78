"""Every shape of directory that users have: ``import``, ``open`` and ``report`` do what one expects of each."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.collect.journal.journal import Journal
from stepscope.errors import InputError
from tests.conftest import files_in
from tests.unit import ascend_build

DATA = Path(__file__).parents[2] / "data"
KINETO = DATA / "kineto" / "alexnet_simple_add.json.gz"
BASE = 1_700_000_000_000_000_000


def kineto(path: Path, start: int, *, steps: tuple[int, ...] = (0, 1), process: int = 9, **document: object) -> Path:
    """Write a trace as torch.profiler does: two operators a step of 1 ms, from ``start`` µs on."""
    events = [{"ph": "M", "name": "process_name", "ts": start, "pid": process, "tid": 0, "args": {"name": "python"}}]
    for place, number in enumerate(steps):
        at, on = start + 1000 * place, {"ph": "X", "pid": process, "tid": process}
        events.append(on | {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 1000})
        for name in ("aten::mm", "aten::add"):
            events.append(on | {"cat": "cpu_op", "name": name, "ts": at + (100 if name == "aten::mm" else 500)})
            events[-1]["dur"] = 300
    text = json.dumps({"baseTimeNanoseconds": BASE, **document, "traceEvents": events})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def window(folder: Path, start: int, *, rank: int | None = None, process: int = 9, **given: object) -> Path:
    """Write a window of a rank as tensorboard_trace_handler names it."""
    said = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    name = f"node_{process}.{BASE + 1000 * start}.pt.trace.json.gz"
    return kineto(folder / name, start, process=process, **said, **given)  # type: ignore[arg-type]


def a_run(folder: Path) -> Path:
    assert main(["import", str(KINETO), "--output", str(folder), "--quiet"]) == 0
    (run,) = folder.iterdir()
    return run


def a_rank_directory(folder: Path) -> Path:
    return a_run(folder) / "rank0"


def a_directory_of_runs(folder: Path) -> Path:
    for name in ("old_20200101-000000", "new_20260101-000000"):
        a_run(folder / "made").rename(folder / name)
    (folder / "made").rmdir()
    return folder


def a_kineto_file(folder: Path) -> Path:
    return kineto(folder / "trace.json", 0)


def a_rank_of_several_windows(folder: Path) -> Path:
    for start, steps in ((50_000, (10, 11)), (10_000, (2, 3)), (90_000, (18, 19))):
        window(folder, start, steps=steps)
    return folder


def ranks_of_several_windows(folder: Path) -> Path:
    for rank in (0, 1):
        for start in (10_000, 50_000):
            window(folder, start + rank, rank=rank, process=20 + rank)
    return folder


def a_duplicate_and_an_unreadable_file(folder: Path) -> Path:
    ranks_of_several_windows(folder)
    first = window(folder, 10_000, rank=0, process=20)
    shutil.copy(first, folder / "copy.json.gz")
    (folder / "node_21.1700000009999999999.pt.trace.json").write_text('{"schemaVersion": 1, "trace')
    return folder


def hosts_of_xplane(folder: Path) -> Path:
    recording = folder / "plugins" / "profile" / "2026_01_02_03_04_05"
    recording.mkdir(parents=True)
    for host in ("node-a", "node-b"):
        shutil.copy(DATA / "xplane" / "steps.xplane.pb", recording / f"{host}.xplane.pb")
    return recording


def ranks_of_ascend(folder: Path) -> Path:
    for rank in (0, 1):
        ascend_build.capture(folder, rank)
    return folder


def mindspore_on_a_cpu(folder: Path) -> Path:
    return Path(shutil.copytree(DATA / "mindspore_cpu" / "two_ranks", folder, dirs_exist_ok=True))


def files_of_paddle(folder: Path) -> Path:
    for process, name in ((7, "paddle331_static.pb"), (8, "paddle331_static.json.gz")):
        content = (DATA / "paddle" / name).read_bytes()
        ending = "pb" if name.endswith("pb") else "json"
        path = folder / f"host_nodepid_{process}_time_2026_01_02_03_04_05_678.paddle_trace.{ending}"
        path.write_bytes(content if ending == "pb" else gzip.decompress(content))
    return folder


def our_own_captures(folder: Path) -> Path:
    capture = folder / "job" / "rank3" / "capture"
    capture.mkdir(parents=True)
    journal = Journal(capture / "journal.ssj")
    for number in range(5):
        journal.step(number, BASE + number * 1_000_000, BASE + (number + 1) * 1_000_000, "declared")
    journal.close()
    kineto(capture / "kineto.json", 0)
    return capture


def nested_one_level(folder: Path) -> Path:
    for rank in (0, 1):
        kineto(folder / f"rank{rank}" / "trace.json", rank)
    return folder


def odd_names(folder: Path) -> Path:
    folder = folder / "der zweite Lauf – 第二 'run'"
    for rank in (0, 1):
        kineto(folder / f"epoch 1 · rank {rank}" / f"trace rank{rank} é.json", rank)
    return folder


#: Shape → what makes it in an empty folder, the ranks that it has, and how the run made of it is named.
SHAPES: dict[str, tuple[Callable[[Path], Path], list[int], str]] = {
    "several windows of a rank": (a_rank_of_several_windows, [0], "log"),
    "several windows of many ranks": (ranks_of_several_windows, [0, 1], "log"),
    "a duplicate and an unreadable file": (a_duplicate_and_an_unreadable_file, [0, 1], "log"),
    "a Kineto file": (a_kineto_file, [0], "trace"),
    "hosts of XPlane": (hosts_of_xplane, [0, 1], "log"),
    "ranks of Ascend": (ranks_of_ascend, [0, 1], "log"),
    "MindSpore on a CPU": (mindspore_on_a_cpu, [0, 1], "log"),
    "files of Paddle": (files_of_paddle, [0, 1], "log"),
    "our own captures": (our_own_captures, [3], "job"),
    "nested one level": (nested_one_level, [0, 1], "log"),
    "odd names": (odd_names, [0, 1], "der_zweite_Lauf___第二__run_"),
}
#: Shapes of what stepscope made.
RUNS: dict[str, Callable[[Path], Path]] = {
    "a run": a_run,
    "a rank directory": a_rank_directory,
    "a directory of runs": a_directory_of_runs,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_in(folder)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_of_captures(shape: str, log: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, ranks, name = SHAPES[shape]
    given = make(log)
    before = contents(log)
    opened = stepscope.open(given)
    assert [rank.rank for rank in opened.ranks] == ranks
    read = [rank.tables["spans"].select(pl.len()).collect().item() for rank in opened.ranks]
    assert all(read)
    assert not list(elsewhere.iterdir()), "nothing is written by open"
    assert main(["check", str(given)]) == (3 if "unreadable" in shape else 0)
    assert not list(elsewhere.iterdir()), "nothing is written by check"
    for verb in (["import", str(given), "--quiet"], ["report", str(given), "--format", "csv"]):
        capsys.readouterr()
        assert main(verb) == 0
        (run,) = (elsewhere / "stepscope-runs").iterdir()
        assert run.name.startswith(f"{name}_2"), run.name
        imported = stepscope.open(run)
        assert [rank.rank for rank in imported.ranks] == ranks
        assert [rank.tables["spans"].select(pl.len()).collect().item() for rank in imported.ranks] == read
        assert all((rank.directory.results / "step_trace_time.csv").exists() for rank in imported.ranks)
        shutil.rmtree(elsewhere / "stepscope-runs")
    assert main(["export", str(given), "--to", "csv", "--output", str(elsewhere / "files")]) == 0
    assert [path.name for path in elsewhere.iterdir()] == ["files"]
    assert contents(log) == before, "nothing is written beside captures"


@pytest.mark.parametrize("shape", RUNS)
def test_a_shape_of_runs(shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = RUNS[shape](tmp_path / "runs")
    assert [rank.rank for rank in stepscope.open(given).ranks] == [0]
    assert stepscope.open(given).path == (given / "new_20260101-000000" if shape == "a directory of runs" else given)
    for verb in (["report", str(given)], ["check", str(given)], ["export", str(given), "--to", "csv"]):
        assert main(verb) == 0
    capsys.readouterr()
    assert main(["import", str(given)]) == 2
    assert "is a run of stepscope already" in capsys.readouterr().err


def test_no_argument_means_the_latest_run_here(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["report"], ["check"], ["export", "--to", "csv"]):
        assert main(verb) == 4
        assert "stepscope-runs does not exist. Name a run" in capsys.readouterr().err
    runs = a_directory_of_runs(elsewhere / "stepscope-runs")
    assert [run.path.name for run in stepscope.runs()] == ["old_20200101-000000", "new_20260101-000000"]
    shutil.rmtree(runs / "new_20260101-000000" / "rank0" / "results")
    capsys.readouterr()
    assert main(["report"]) == 0
    assert "stepscope-runs/new_20260101-000000" in capsys.readouterr().out
    assert (runs / "new_20260101-000000" / "rank0" / "results" / "step_trace_time.csv").exists()
    assert main(["check"]) == 0
    assert main(["export", "--to", "json"]) == 0
    assert "new_20260101-000000" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["empty", "of other files", "a file", "nowhere"])
def test_what_is_unknown_gets_a_sentence(name: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = log
    if name == "of other files":
        (log / "notes.txt").write_text("hello")
    elif name == "a file":
        given = log / "notes.txt"
        given.write_text("hello")
    elif name == "nowhere":
        given = log / "nowhere"
    for verb in ("import", "report", "check"):
        assert main([verb, str(given)]) == 4
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert str(given) in error
        if name != "nowhere":
            assert all(what in error for what in ("stepscope run", "pt.trace.json", "xplane.pb", "_ascend_pt")), error
    with pytest.raises(InputError):
        stepscope.open(given)


def test_windows_lie_on_one_time_line_with_steps_of_their_own(log: Path) -> None:
    a_rank_of_several_windows(log)
    steps = stepscope.open(log).tables["steps"].collect()
    assert steps["number"].to_list() == [2, 3, 10, 11, 18, 19]
    assert ((steps["ts"] - BASE) // 1_000_000).to_list() == [10, 11, 50, 51, 90, 91]
    result = stepscope.open(log).result("step_trace_time")
    assert isinstance(result, pl.DataFrame)
    assert result.height == 6


def test_windows_that_all_count_from_0_count_on(log: Path) -> None:
    for start in (90_000, 10_000, 50_000):
        window(log, start)
    run = stepscope.open(log)
    assert run.tables["steps"].collect()["number"].to_list() == [0, 1, 2, 3, 4, 5]
    spans = run.tables["spans"].filter(pl.col("kind") == "operator").collect()
    assert spans["step"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert run.tables["losses"].collect().is_empty()


def test_windows_without_steps_are_one_step_each(log: Path) -> None:
    for start in (10_000, 50_000):
        path = window(log, start, steps=(7,))
        text = gzip.decompress(path.read_bytes()).decode().replace("ProfilerStep#7", "my step")
        path.write_bytes(gzip.compress(text.encode()))
    steps = stepscope.open(log).tables["steps"].collect()
    assert [(number, (ts - BASE) // 1_000, dur) for number, ts, dur in steps.select("number", "ts", "dur").rows()] == [
        (0, 10_000, 1_000_000),
        (1, 50_000, 1_000_000),
    ]
    assert set(steps["source"]) == {"inferred"}


@pytest.mark.parametrize(("chosen", "first"), [("last", 50_000), ("1", 10_000), ("all", 10_000)])
def test_windows_that_are_asked_for(chosen: str, first: int, log: Path, elsewhere: Path) -> None:
    ranks_of_several_windows(log)
    assert main(["import", str(log), "--window", chosen, "--quiet"]) == 0
    (run,) = stepscope.runs()
    for rank in run.ranks:
        steps = rank.tables["steps"].collect()
        assert steps.height == (4 if chosen == "all" else 2)
        assert steps["ts"].min() == BASE + (first + rank.rank) * 1000
    assert main(["import", str(log), "--window", "3", "--quiet"]) == 2


def test_what_is_left_out_is_named(log: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_duplicate_and_an_unreadable_file(log)
    assert main(["import", str(log), "--quiet"]) == 0
    errors = capsys.readouterr().err
    assert errors.count("\n") == 4
    assert errors.splitlines()[-1].startswith("stepscope: left out: node_2")
    assert "is of the same rank and the same time as" in errors
    assert "node_21.1700000009999999999.pt.trace.json is left out: " in errors
    assert "it ends, or stops being JSON, before its first event" in errors
    assert "4 of 6 captures are imported" in errors
    (run,) = stepscope.runs()
    losses = pl.concat([rank.tables["losses"].collect().cast({"what": pl.String}) for rank in run.ranks])
    assert sorted(losses["what"]) == ["file_duplicate", "file_unreadable"]
    reasons = [said["reason"] for rank in run.ranks for said in rank.manifest.get("left_out", {}).values()]
    assert len(reasons) == 2
    assert len(stepscope.open(log).left_out) == 2


def test_a_rank_that_turns_out_damaged_costs_itself(
    log: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        kineto(log / f"rank{rank}.json", rank)
    (log / "other").mkdir()
    (log / "other" / "rank2.xplane.pb").write_bytes(b"\xff" * 100)
    assert main(["import", str(log), "--quiet"]) == 0
    errors = capsys.readouterr().err
    assert "rank2 is left out" in errors
    assert errors.splitlines()[-1] == "stepscope: left out: rank2.xplane.pb. The first rank's losses say why."
    (run,) = stepscope.runs()
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [Path(name).name for name in run.ranks[0].manifest["left_out"]] == ["rank2.xplane.pb"]
    losses = run.ranks[0].tables["losses"].filter(pl.col("what").cast(pl.String) == "rank_left_out").collect()
    assert losses["source"].to_list() == ["rank2.xplane.pb"]


def test_ranks_that_no_file_says_are_said_so(log: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for process in (10, 9):
        window(log, 10_000, process=process)
    assert main(["import", str(log), "--quiet"]) == 0
    text = "no file says its rank; in order of name: node_9 is rank 0, node_10 is rank 1."
    assert text in capsys.readouterr().err


def test_check_of_captures_names_what_is_left_out(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_duplicate_and_an_unreadable_file(log)
    assert main(["check", str(log)]) == 3
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("left out")]) == 2
    assert "does not fit           node_21.1700000009999999999.pt.trace.json cannot be read." in said


def test_paths_that_nothing_can_be_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / ("x" * 5000), tmp_path / ("y/" * 2500)):
        for verb in (["check"], ["report"], ["import"], ["export", "--to", "csv"]):
            assert main([verb[0], str(path), *verb[1:]]) == 4
            assert capsys.readouterr().err.count("\n") == 1


def test_a_directory_that_links_to_itself(tmp_path: Path) -> None:
    shutil.copy(DATA / "kineto" / "cuda_event_sync.json.gz", tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    (rank,) = stepscope.open(tmp_path).ranks
    assert [capture.name for capture in rank.captures] == ["cuda_event_sync.json.gz"]
