"""One file, or some of the files, of an Ascend capture: what it says is read, the rest is null."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.errors import InputError, NotARunError
from stepscope.report import registry
from stepscope.report.protocol import Source
from stepscope.run import RankRun
from tests.golden.test_ascend_totals import STATED
from tests.unit.ascend_build import OUTPUT

CAPTURE = "text_level2/rank1_ascend_pt"
#: µs that step_trace_time.csv of rank 1 states.
COMPUTING, COMMUNICATION, EXPOSED, FREE = 8902.301, 97455.326, 93411.782, 26441.689


def steps(rank: RankRun) -> pl.DataFrame:
    found = rank.result("step_trace_time")
    assert isinstance(found, pl.DataFrame)
    return found


@pytest.fixture
def some_of(tmp_path: Path, shared_data: Path) -> Callable[..., RankRun]:
    """Open a copy of some files of a rank."""

    def opened(*names: str) -> RankRun:
        source, root = shared_data / "ascend" / CAPTURE, tmp_path / "rank1_ascend_pt"
        (root / OUTPUT).mkdir(parents=True)
        for name in names:
            shutil.copy(source / OUTPUT / name, root / OUTPUT)
        (rank,) = stepscope.open(root).ranks
        return rank

    return opened


@pytest.mark.parametrize("capture", ["text_level0", "text_level2", "timeline_only"])
@pytest.mark.parametrize("name", ["trace_view.json", "from a colleague.json", "trace.json.gz"])
def test_a_bare_timeline_is_told_by_its_processes(
    capture: str, name: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = next((shared_data / "ascend" / capture).glob(f"rank0*/{OUTPUT}/trace_view.json")).read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    (rank,) = stepscope.open(path).ranks
    assert rank.manifest["format"] == "ascend"
    computing, exposed = STATED[capture]
    assert steps(rank)["Computing"].sum() == pytest.approx(computing, abs=0.2)
    assert steps(rank)["Communication(Not Overlapped)"].sum() == pytest.approx(exposed, abs=0.2)
    # An import, whose copy lies alone, too, and a directory with nothing else in it.
    for given in (path, tmp_path):
        assert main(["import", str(given), "--output", str(tmp_path / "runs" / given.name), "--quiet"]) == 0
        made = stepscope.open(capsys.readouterr().out.strip())
        assert steps(made.ranks[0]).equals(steps(rank))


@pytest.mark.parametrize("place", ["file", "directory"])
def test_a_timeline_of_a_gpu_is_not_ascends_though_it_has_the_name(
    place: str, shared_data: Path, tmp_path: Path
) -> None:
    name = "kineto/hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz"
    (rank,) = stepscope.open(shared_data / name).ranks
    (path,) = registry.FORMATS["trace"].write(Source(rank.tables, rank.results, rank.manifest), tmp_path)
    assert path.name == "trace_view.json"
    (again,) = stepscope.open(path if place == "file" else tmp_path).ranks
    assert again.captures[0].format == "kineto"
    assert {entry.name for entry in again.summary.kernels} == {entry.name for entry in rank.summary.kernels}
    assert again.summary.on_device
    assert steps(again)["Computing"].to_list() == steps(rank)["Computing"].to_list()


def test_a_bare_timeline_of_mindspore_on_a_cpu(shared_data: Path) -> None:
    path = shared_data / "mindspore_cpu" / "ms210_cpu_graph" / OUTPUT / "trace_view.json"
    (rank,) = stepscope.open(path).ranks
    kinds = set(rank.tables["spans"].select("kind").collect()["kind"])
    assert kinds == {"operator"}  # the bars of Scope Layer are none
    assert steps(rank)["Computing"][0] > 0


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("kernel_details.csv", "spans"),
        ("communication.json", "collectives"),
        ("communication_matrix.json", "links"),
        ("memory_record.csv", "counters"),
        ("operator_memory.csv", "allocations"),
        ("npu_module_mem.csv", "counters"),
        ("step_trace_time.csv", "metadata"),
        ("op_statistic.csv", "metadata"),
        ("api_statistic.csv", "metadata"),
        ("ascend_pytorch_profiler_1.db", "spans"),
        ("analysis.db", "collectives"),
    ],
)
def test_every_file_is_read_by_itself(name: str, table: str, shared_data: Path) -> None:
    folder = "db_level1/rank1_ascend_pt" if name.endswith(".db") else CAPTURE
    (rank,) = stepscope.open(shared_data / "ascend" / folder / OUTPUT / name).ranks
    assert rank.rank == 1  # of the directory that it lies in
    assert rank.tables[table].select(pl.len()).collect().item()
    assert "idle" not in {part.name for part in rank.summary.split} or name.startswith("ascend_pytorch")


@pytest.mark.parametrize(
    "name",
    [
        "text_level2/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv",
        "text_level2/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/communication.json",
        "db_level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/analysis.db",
    ],
)
def test_a_device_whose_number_no_file_says_has_none(name: str, shared_data: Path, tmp_path: Path) -> None:
    """The rank worked on npu:1; these files alone do not say it, and npu:0 would be another device."""
    (rank,) = stepscope.open(shared_data / "ascend" / name).ranks
    assert rank.summary.devices == ("npu",)
    assert rank.tables["kernels"].select(pl.col("device").null_count() == pl.len()).collect().item()
    (root,) = registry.layout("ascend", "text,db").write(Source(rank.tables, rank.results, rank.manifest), tmp_path)
    for path in root.rglob("op_statistic.csv"):
        assert set(pl.read_csv(path, infer_schema=False)["Device_id"]) == {"N/A"}
    for path in root.rglob("ascend_pytorch_profiler_*.db"):
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT DISTINCT deviceId FROM RANK_DEVICE_MAP").fetchall() == [(None,)]


@pytest.mark.parametrize("name", ["l2_cache.csv", "operator_details.csv", "../profiler_info_1.json"])
def test_a_file_that_says_nothing_by_itself_says_what_it_is(name: str, shared_data: Path) -> None:
    with pytest.raises(NotARunError, match="a file of an Ascend profiler") as error:
        stepscope.open((shared_data / "ascend" / CAPTURE / OUTPUT / name).resolve())
    assert "rank1_ascend_pt, with the files of the same recording" in str(error.value.remedy)


@pytest.mark.parametrize("name", ["cpu_framework_0.txt", "cpu_op_type_info_0.csv", "RuntimeProfilerSummary*.csv"])
def test_a_file_of_mindspore_says_what_it_is(name: str, shared_data: Path) -> None:
    path = next(path for path in (shared_data / "mindspore_cpu").rglob(name))
    with pytest.raises(NotARunError, match="a file of MindSpore's profiler on a CPU"):
        stepscope.open(path)


def test_kernels_without_a_timeline(some_of: Callable[..., RankRun]) -> None:
    rank = some_of("kernel_details.csv", "memory_record.csv")
    found = steps(rank).row(0, named=True)
    assert found["Computing"] == pytest.approx(COMPUTING, abs=0.2)
    assert found["Communication"] == pytest.approx(COMMUNICATION, abs=0.2)
    assert found["Copy(Not Overlapped)"] is None
    assert found["Host Only"] is None
    assert found["Idle"] is None
    assert rank.summary.devices == ("npu:1",)  # memory_record.csv says it
    assert rank.summary.not_recorded == ("copy", "data wait", "sync", "host only", "idle")


def test_kernels_of_the_lowest_level_without_a_timeline(shared_data: Path) -> None:
    # The file has neither types nor cores.
    path = shared_data / "ascend" / "text_level0" / "rank0_ascend_pt" / OUTPUT / "kernel_details.csv"
    assert steps(stepscope.open(path).ranks[0])["Computing"].sum() == pytest.approx(STATED["text_level0"][0], abs=0.2)


def test_files_of_sums_alone(some_of: Callable[..., RankRun]) -> None:
    rank = some_of("step_trace_time.csv", "op_statistic.csv", "api_statistic.csv", "communication.json")
    found = steps(rank).row(0, named=True)
    assert found["Step"] == 50
    said = {"Computing": COMPUTING, "Communication": COMMUNICATION, "Free": FREE}
    assert {name: found[name] for name in said} == pytest.approx(said, abs=0.001)
    assert found["Communication(Not Overlapped)"] == pytest.approx(EXPOSED, abs=0.001)
    assert found["Idle"] is None
    assert rank.summary.split == ()
    assert rank.summary.steps.count == 0  # communication does not say how long a step is
    operators, calls = rank.result("op_statistic"), rank.result("api_statistic")
    assert isinstance(operators, pl.DataFrame)
    assert isinstance(calls, pl.DataFrame)
    (row,) = operators.filter(pl.col("OP Type") == "ForeachAddList").rows(named=True)
    assert (row["Count"], row["Total Time(us)"]) == (3, pytest.approx(1949.12))
    assert calls["Count"].sum() > 1000
    assert {"Runtime", "AscendCL"} <= set(calls["Level"])
    times = rank.result("communication")
    assert isinstance(times, dict)
    assert "allreduce" in str(times).lower()


def emptied(root: Path) -> None:
    for path in (root / OUTPUT).iterdir():
        path.write_bytes(b"")


def cut(root: Path) -> None:
    for path in (root / OUTPUT).iterdir():
        if path.name == "trace_view.json":
            path.write_text('[{"ph": "X", "name"')
        else:
            path.unlink()


def without_output(root: Path) -> None:
    shutil.rmtree(root / OUTPUT)


def gone(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


@pytest.mark.parametrize("damage", [emptied, cut, without_output, gone])
def test_a_broken_rank_costs_itself_by_name(
    damage: Callable[[Path], None], shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Path(shutil.copytree(shared_data / "ascend" / "text_level2", tmp_path / "job"))
    damage(job / "rank1_ascend_pt")
    assert main(["import", str(job), "--output", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith("stepscope: left out: rank1_ascend_pt.")
    assert "! Rank 1 cannot be read." in said.out or "1 rank left out" in said.out
    (run,) = stepscope.runs(tmp_path / "runs")
    (rank,) = run.ranks
    rows = rank.tables["losses"].filter(pl.col("what").cast(pl.String) == "rank_left_out").collect()
    assert rows["source"].to_list() == ["rank1_ascend_pt"]
    assert steps(rank)["Computing"].sum() == pytest.approx(STATED["text_level2"][0], abs=0.2)


def test_an_intact_rank_without_kernels_is_there(shared_data: Path, tmp_path: Path) -> None:
    job = Path(shutil.copytree(shared_data / "ascend" / "text_level2", tmp_path / "job"))
    for path in (job / "rank1_ascend_pt" / OUTPUT).iterdir():
        header = path.read_text().splitlines()[0]
        path.write_text(f"{header}\n") if path.suffix == ".csv" else path.unlink()
    run = stepscope.open(job)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert "files_without_events" in run.ranks[1].tables["losses"].collect()["what"].cast(pl.String)
    assert run.ranks[1].summary.split == ()


#: Format → intact files of it in which nothing was recorded.
NOTHING = {
    "trace.json": b'{"schemaVersion": 1, "traceEvents": []}',
    "no_kernels.json": b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]}',
    "host.paddle_trace.json": b'{"schemaVersion": "1.0.0", "span_indx": "0", "traceEvents": []}',
    "cpu_op_execute_timestamp_0.txt": b"\n",
}


@pytest.mark.parametrize("name", list(NOTHING))
def test_an_intact_file_without_events_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(NOTHING[name])
    (rank,) = stepscope.open(tmp_path / name).ranks
    assert rank.summary.steps.count == 0


@pytest.mark.parametrize(
    ("name", "copy", "table"),
    [
        ("ascend_pytorch_profiler_0.db", "Monday.db", "tasks"),
        ("ascend_pytorch_profiler_0.db", "Monday.sqlite", "tasks"),
        ("analysis.db", "sums of Monday.db", "links"),
    ],
)
def test_a_database_of_another_name_is_told_by_its_tables(
    name: str, copy: str, table: str, shared_data: Path, tmp_path: Path
) -> None:
    shutil.copy(shared_data / "ascend/db_level1/rank0_ascend_pt" / OUTPUT / name, tmp_path / copy)
    for path in (tmp_path / copy, tmp_path):
        (rank,) = stepscope.open(path).ranks
        assert rank.captures[0].format == "ascend"
        assert rank.tables[table].collect().height


def test_a_rank_whose_file_is_no_trace_is_named(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").mkdir()
    source = shared_data / "kineto/hta/trace_filter/sampled_rank-0.json.gz"
    shutil.copy(source, tmp_path / "job" / source.name)
    (tmp_path / "job/sampled_rank-1.json").write_text("No space left on device")
    (tmp_path / "job/settings_1.json").write_text("{}")
    assert main(["import", str(tmp_path / "job"), "--output", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("stepscope: left out: sampled_rank-1.json.")
    (run,) = stepscope.runs(tmp_path / "runs")
    rows = run.ranks[0].tables["losses"].filter(pl.col("severity") != "info").collect()
    assert rows["source"].to_list() == ["sampled_rank-1.json"]


@pytest.mark.parametrize(
    "name",
    [
        "kernel_details.csv", "communication.json", "communication_matrix.json", "memory_record.csv",
        "operator_memory.csv", "npu_module_mem.csv", "step_trace_time.csv", "op_statistic.csv", "api_statistic.csv",
    ],
)  # fmt: skip
def test_a_renamed_file_is_read_like_the_original(name: str, shared_data: Path, tmp_path: Path) -> None:
    """Given a file as colleagues send it, with a name of their own and the mark of a spreadsheet."""
    source = shared_data / "ascend" / CAPTURE / OUTPUT / name
    renamed = tmp_path / f"from a colleague{source.suffix}"
    renamed.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    (original,), (rank,) = (stepscope.open(path).ranks for path in (source, renamed))
    assert rank.manifest["format"] == "ascend"
    for table in ("spans", "counters", "allocations", "links", "collectives"):
        assert rank.tables[table].collect().height == original.tables[table].collect().height
    assert steps(rank).equals(steps(original))


def test_a_renamed_file_is_imported(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shared_data / "ascend" / CAPTURE / OUTPUT / "kernel_details.csv"
    renamed = shutil.copy(source, tmp_path / "mine.csv")
    assert main(["import", str(renamed), "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    (rank,) = stepscope.open(capsys.readouterr().out.strip()).ranks
    assert steps(rank).equals(steps(stepscope.open(source).ranks[0]))


def test_sums_over_the_ranks_of_a_job_are_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text(
        "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n,rank,0,1,1,1,1,1\n"
    )
    with pytest.raises(InputError):
        stepscope.open(path)


def _with_process(shared_data: Path, path: Path, number: int, name: str, label: str) -> RankRun:
    """Open a timeline with one more process: the computing tasks once more, under other names."""
    source = shared_data / "ascend" / CAPTURE / OUTPUT / "trace_view.json"
    events = json.loads(source.read_text())
    hardware = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "Ascend Hardware")
    process = hardware & ~0x3FF | number << 5 | hardware & 31
    cores = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV")
    tasks = [e for e in events if e["pid"] == hardware and (e.get("args") or {}).get("Task Type") in cores]
    assert tasks
    for what, args in (("process_name", {"name": name}), ("process_labels", {"labels": label})):
        events.append({"ph": "M", "name": what, "pid": process, "tid": 0, "args": args})
    events += [{**task, "name": "more", "pid": process, "tid": 0, "args": {}} for task in tasks]
    path.write_text(json.dumps(events))
    (rank,) = stepscope.open(path).ranks
    assert rank.tables["tracks"].filter(device="npu:1", kind="stream").collect().height
    return rank


def _kinds(rank: RankRun) -> dict[str, int]:
    found = rank.tables["spans"].filter(pl.col("name").cast(pl.String) == "more")
    return dict(found.group_by(pl.col("kind").cast(pl.String)).len().collect().iter_rows())


# Names, numbers and labels are those of CANN's source.
@pytest.mark.parametrize(("name", "number"), [("Block Detail", 2), ("Biu Perf", 0), ("CCU", 30)])
def test_details_of_device_work_are_no_work_of_the_host(
    name: str, number: int, shared_data: Path, tmp_path: Path
) -> None:
    rank = _with_process(shared_data, tmp_path / "trace_view.json", number, name, "NPU")
    assert _kinds(rank) == {}
    assert steps(rank)["Computing"].sum() == pytest.approx(COMPUTING, rel=0.01)


def test_an_unknown_process_of_a_device_keeps_its_time_and_is_named(shared_data: Path, tmp_path: Path) -> None:
    rank = _with_process(shared_data, tmp_path / "trace_view.json", 31, "Tensor Mover", "NPU")
    assert _kinds(rank).keys() == {"other"}
    assert steps(rank)["Computing"].sum() == pytest.approx(COMPUTING, rel=0.01)
    (advice,) = rank.tables["losses"].filter(what="kind_unknown").collect()["advice"]
    assert "Tensor Mover" in advice


def test_calls_of_the_system_leave_the_device_known(shared_data: Path, tmp_path: Path) -> None:
    rank = _with_process(shared_data, tmp_path / "trace_view.json", 12, "OS Runtime API", "CPU")
    assert _kinds(rank).keys() == {"operator"}


def test_devices_of_one_timeline_stay_apart(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "ascend" / CAPTURE / OUTPUT / "trace_view.json"
    events = json.loads(source.read_text())
    labels = {e["pid"]: e["args"]["labels"] for e in events if e["name"] == "process_labels"}
    # What a process with two devices has: the processes of the second have other numbers.
    twins = [{**event, "pid": event["pid"] + 2} for event in events if labels.get(event["pid"]) == "NPU"]
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([*events, *twins]))
    (one,), (two,) = (stepscope.open(file).ranks for file in (source, path))
    alone, both = (rank.result("op_statistic") for rank in (one, two))
    assert isinstance(alone, pl.DataFrame)
    assert isinstance(both, pl.DataFrame)
    sums = {
        device: rows.drop("Device_id").sort("OP Type", "Core Type") for (device,), rows in both.group_by("Device_id")
    }
    assert sums.keys() == {"npu:1", "npu:3", "cpu"}
    device = alone.filter(pl.col("Device_id") == "npu:1").drop("Device_id").sort("OP Type", "Core Type")
    assert sums["npu:1"].equals(device)
    assert sums["npu:3"].equals(device)
    assert "total_differs" not in two.tables["losses"].collect()["what"]
