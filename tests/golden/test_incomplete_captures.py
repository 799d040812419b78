"""Real captures of which a part is missing: what that part would have shown is a dash, and nobody is blamed for it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from stepscope.cli.main import main
from stepscope.report.protocol import Source
from stepscope.report.registry import layout
from stepscope.run import RankRun

FIRST = "rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
#: Timelines, whose events lie in the order of their sort rather than of time.
TIMELINES = (
    "kineto/kineto/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz",
    "kineto/tracelens/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
    f"ascend/text_level2/{FIRST}/trace_view.json",
    "paddle/paddle331_dygraph.json",
)


def cut_to(share: float, path: Path, to: Path) -> Path:
    """Write the first part of a file, unpacked."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    to.write_bytes(content[: int(len(content) * share)])
    return to


def lost(rank: RankRun) -> set[str]:
    return set(rank.tables["losses"].select(pl.col("what").cast(pl.String)).collect()["what"])


def shows_no_part_of_a_step(rank: RankRun) -> bool:
    found, summary = rank.result("step_trace_time"), rank.summary
    assert isinstance(found, pl.DataFrame)
    assert "computing" in summary.not_recorded
    assert summary.phases == ()
    # Other processes are told by what the kernel says of the thread, also where its steps are not known.
    assert {finding.cause for finding in found_in(Observed(rank.tables))} <= {"other-processes"}
    return summary.split == () and found["Idle"].null_count() == found.height


def known(table: pl.DataFrame) -> set[str]:
    """Return the columns that have a value."""
    return {name for name, values in table.to_dict().items() if values.null_count() < len(values)}


@pytest.mark.parametrize("share", [0.15, 0.4, 0.7, 0.9])
@pytest.mark.parametrize("name", TIMELINES)
def test_what_is_behind_a_cut_is_not_idle(name: str, share: float, shared_data: Path, tmp_path: Path) -> None:
    (rank,) = stepscope.open(cut_to(share, shared_data / name, tmp_path / "trace.json")).ranks
    assert "file_cut" in lost(rank)
    assert shows_no_part_of_a_step(rank)


def test_tables_do_not_state_what_a_cut_hides(shared_data: Path, tmp_path: Path) -> None:
    """Given a trace cut before most of its collectives, then no table says how long they, or idle time, lasted."""
    source = shared_data / "kineto/hta/trace_filter/sampled_rank-0.json.gz"
    (rank,) = stepscope.open(cut_to(0.5, source, tmp_path / "trace.json")).ranks
    (root,) = layout("ascend").write(Source(rank.tables, rank.results, rank.manifest), tmp_path)
    assert known(pl.read_csv(root / "ASCEND_PROFILER_OUTPUT/step_trace_time.csv")) == {"Step"}
    assert '"Free"' not in (root / "ASCEND_PROFILER_OUTPUT/trace_view.json").read_text()
    results = {name: table for name, table in rank.results.items() if isinstance(table, pl.DataFrame)}
    assert known(results["step_trace_time"]) == {"Step", "Start Time(us)", "Total"}
    assert {"Busy(us)"} <= known(results["device_time"])
    assert not {"Idle(us)", "Busy(%)", "Communication(Not Overlapped)(us)"} & known(results["device_time"])
    assert "step_efficiency" not in results
    assert set(results["slow_steps"]["Name"]) == {"step"}


def test_a_cut_timeline_says_neither_where_the_time_goes_nor_that_it_ran_on_a_processor(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cut_to(0.3, shared_data / TIMELINES[2], tmp_path / "trace.json")
    assert main(["import", str(path), "--output", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    assert "device unknown" in said.out
    assert "What a step consists of is not known: a part of the capture is cut off" in said.out
    assert said.err == ""


def test_what_a_damaged_database_lacks_is_not_idle(shared_data: Path, tmp_path: Path) -> None:
    capture = Path(shutil.copytree(shared_data / "ascend/db_level1/rank0_ascend_pt", tmp_path / "rank0_ascend_pt"))
    path = capture / "ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (rank,) = stepscope.open(capture).ranks
    assert "database_damaged" in lost(rank)
    assert shows_no_part_of_a_step(rank)


@pytest.mark.parametrize(
    ("name", "device"),
    [("memory/snapshot_expandable.pkl", "cuda:0"), (f"ascend/text_level2/{FIRST}/memory_record.csv", "device unknown")],
)
def test_a_capture_of_memory_is_that(
    name: str, device: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(shared_data / name), "--output", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert f"imported · {device} · rank 0" in said
    assert "Nothing was recorded" not in said


def test_a_cut_rank_is_not_blamed(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        source = shared_data / f"kineto/hta/trace_filter/sampled_rank-{number}.json.gz"
        shutil.copy(source, tmp_path / source.name)
    second = tmp_path / "sampled_rank-1.json.gz"
    second.write_bytes(second.read_bytes()[: second.stat().st_size // 2])
    assert main(["import", str(tmp_path), "--output", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "! The capture of rank 1 ends before the recording did." in said
    assert "parts of 1 of 2 ranks" in said
    steps = pl.read_csv(next((tmp_path / "runs").glob("*/cluster/cluster_step_trace_time.csv")))
    assert known(steps.filter(pl.col("Index") == 1)) == {"Step", "Type", "Index", "Total"}
    assert "Rank 1 keeps" not in said


def test_a_rank_without_its_timeline_is_not_the_faster_one(shared_data: Path, tmp_path: Path) -> None:
    """Given a rank of which only kernels are there, whose step is inferred from them, then its speed is unknown."""
    job = Path(shutil.copytree(shared_data / "ascend/text_level2", tmp_path / "job"))
    (job / "rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json").unlink()
    ranks = stepscope.open(job).job.results["cluster_ranks"]
    assert ranks.select("steps", "speed").rows() == [(1, 1.0), (1, None)]
    assert known(ranks[1:]).isdisjoint({"step_ns", "own_ns"})


def test_a_rank_left_out_is_not_nothing(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given a job of two ranks, one of them empty files, then "nothing" was lost neither at once nor later."""
    job = Path(shutil.copytree(shared_data / "mindspore_cpu/comm_2rank", tmp_path / "job"))
    for path in (job / "graph_rank1").rglob("*.*"):
        if path.is_file():
            path.write_bytes(b"")
    assert main(["import", str(job), "--output", str(tmp_path / "runs")]) == 0
    assert main(["report", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["left out" in line for line in said if line.startswith(" lost")] == [True, True]


@pytest.mark.parametrize(
    "name",
    [
        "paddle/paddle331_dygraph.pb",
        "xplane/jax_cpu_mlp.xplane.pb",
        "rocprof/908_results.json.gz",
        "memory/snapshot_expandable.pkl",
    ],
)
def test_an_empty_file_beside_a_sound_one_is_named_whatever_wrote_it(
    name: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    sound = shared_data / name
    end = sound.name[sound.name.index(".") :]
    shutil.copy(sound, job / f"rank0{end}")
    (job / f"rank1{end}").write_bytes(b"")
    assert main(["import", str(job), "--output", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"stepscope: left out: rank1{end}.")
    (run,) = stepscope.runs(tmp_path / "runs")
    losses = run.ranks[0].tables["losses"].filter(pl.col("severity") == "data_loss").collect()
    assert losses["source"].to_list() == [f"rank1{end}"]


def test_without_the_devices_work_operators_do_not_count_as_computing(shared_data: Path) -> None:
    """Given a trace of CUPTI's counters, with the calls that launch kernels and without the kernels."""
    (rank,) = stepscope.open(next((shared_data / "kineto/hta/cupti_profiler").glob("*.json.gz"))).ranks
    assert shows_no_part_of_a_step(rank)


def of_kernels(path: Path, to: Path) -> Path:
    """Write the kernels of a trace of Kineto."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["traceEvents"] = [one for one in document["traceEvents"] if one.get("cat") == "kernel"]
    to.write_text(json.dumps(document))
    return to


@pytest.mark.parametrize("kineto", [True, False])
def test_without_the_host_no_time_is_idle(kineto: bool, shared_data: Path, tmp_path: Path) -> None:
    """Given kernels alone: of a trace of Kineto, and as `rocprofv3 --kernel-trace` recorded them."""
    path = shared_data / "rocprof" / "908_results.json.gz"
    if kineto:
        whole = shared_data / "kineto/tracelens/mi210/gpu_only_trace/gpu_only_trace.json.gz"
        path = of_kernels(whole, tmp_path / "kernels.json")
    (device,) = stepscope.open(path).ranks
    parts = {part.name for part in device.summary.split}
    assert "computing" in parts
    assert not parts & {"data wait", "sync", "host only", "idle"}
    busy = device.result("step_trace_time")
    assert isinstance(busy, pl.DataFrame)
    assert busy["Computing"].sum() > 0
    assert busy["Idle"].null_count() == busy.height


def without_times(directory: Path) -> None:
    next(directory.rglob("cpu_op_execute_timestamp_*.txt")).unlink()


def with_half_the_times(directory: Path) -> None:
    path = next(directory.rglob("cpu_op_execute_timestamp_*.txt"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))


@pytest.mark.parametrize("damage", [without_times, with_half_the_times])
def test_operators_that_mindspore_counted_and_no_file_times(
    damage: Callable[[Path], None], shared_data: Path, tmp_path: Path
) -> None:
    job = Path(shutil.copytree(shared_data / "mindspore_cpu/comm_2rank", tmp_path / "job"))
    damage(job / "graph_rank1")
    sound, damaged = stepscope.open(job).ranks
    assert sound.summary.split != ()
    assert "operators_missing" in lost(damaged)
    assert shows_no_part_of_a_step(damaged)


def test_steps_of_another_recording_than_the_work_are_not_idle(shared_data: Path, tmp_path: Path) -> None:
    with stepscope.profile(output=tmp_path, quiet=True) as profile:
        for _ in range(3):
            profile.step()
    (capture,) = tmp_path.glob("*/rank0/capture")
    shutil.copy(shared_data / "kineto/hta/triton_example/triton_example.json.gz", capture)
    (rank,) = stepscope.open(tmp_path).ranks
    assert rank.summary.steps.count == 3
    assert "spans_outside_steps" in lost(rank)
    assert shows_no_part_of_a_step(rank)


@pytest.mark.parametrize(
    "content", [b"", bytes(20_000), b"\x1f\x8b" + bytes(20_000)], ids=["empty", "zeros", "no gzip"]
)
def test_a_damaged_file_beside_sound_ones_is_a_loss_of_the_captures_in_place(
    content: bytes, shared_data: Path, tmp_path: Path
) -> None:
    shutil.copy(shared_data / "kineto/hta/triton_example/triton_example.json.gz", tmp_path)
    (tmp_path / "decode.json.gz").write_bytes(content)
    run = stepscope.open(tmp_path)
    (rank,) = run.ranks
    assert "file_unreadable" in lost(rank)
    assert [loss.source for loss in rank.summary.losses if loss.severity == "data_loss"] == ["decode.json.gz"]
    assert run.job.tables.ranks.height == 2  # whose rank it is, no file says


def test_a_flipped_bit_of_a_small_gzip_file_leaves_a_capture(shared_data: Path, tmp_path: Path) -> None:
    packed = bytearray((shared_data / "kineto/tracelens/sglang_decode/sglang_Qwen3-8B_decode.json.gz").read_bytes())
    packed[20_000] ^= 1
    (tmp_path / "decode.json.gz").write_bytes(bytes(packed))
    (rank,) = stepscope.open(tmp_path).ranks
    assert "file_corrupt" in lost(rank)
    assert shows_no_part_of_a_step(rank)
    assert rank.summary.kernels


def test_what_a_cut_host_pipeline_lacks_is_not_idle(shared_data: Path, tmp_path: Path) -> None:
    """Threads write their events in turns, so others than the last ones are missing."""
    capture = Path(shutil.copytree(shared_data / "mindspore_cpu/runtime_profiler_graph", tmp_path / "capture"))
    (path,) = capture.glob("RuntimeProfilerDetail*.csv")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    (rank,) = stepscope.open(capture).ranks
    assert "file_cut" in lost(rank)
    assert shows_no_part_of_a_step(rank)


def test_communication_alone_makes_no_step(shared_data: Path, tmp_path: Path) -> None:
    """Given a timeline without marks of steps, and collectives with the number of theirs, then no step is known."""
    output = tmp_path / FIRST
    output.mkdir(parents=True)
    source = shared_data / "ascend/text_level2" / FIRST
    shutil.copy(source / "communication.json", output)
    events = json.loads((source / "trace_view.json").read_text())
    (output / "trace_view.json").write_text(
        json.dumps([one for one in events if not one["name"].startswith("ProfilerStep")])
    )
    (rank,) = stepscope.open(tmp_path).ranks
    assert rank.tables["steps"].collect().is_empty()
    assert rank.summary.steps.total_ns > 170e6  # the whole recording, of which collectives are 100 ms


def test_time_between_two_windows_belongs_to_no_step(shared_data: Path) -> None:
    """Given two recordings of one program with 1.5 s between them, then each is a step, and the time between is not."""
    (rank,) = stepscope.open(shared_data / "mindspore_cpu/ms210_cpu_graph_schedule").ranks
    assert rank.summary.steps.count == 2
    assert rank.summary.steps.total_ns < 500e6


@pytest.mark.parametrize("damage", ["unlink", "empty"])
def test_a_rank_without_its_manifest_costs_itself(
    damage: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(shared_data / "mindspore_cpu/comm_2rank"), "--output", str(tmp_path / "runs")]) == 0
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    manifest = run / "rank1/manifest.json"
    manifest.unlink() if damage == "unlink" else manifest.write_bytes(b"")
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 ranks is missing: 1." in said or "! Rank 1 cannot be read." in said
    assert main(["check", str(run)]) == 3


def test_results_of_a_rank_that_lost_its_manifest_are_no_capture(shared_data: Path, tmp_path: Path) -> None:
    """Given a run without manifest, whose results have names of Ascend's files, then its captures are read alone."""
    path = shared_data / "kineto/tracelens/mi300_bert_small.json.gz"
    assert main(["import", str(path), "--output", str(tmp_path / "runs")]) == 0
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    (run / "rank0/manifest.json").unlink()
    (rank,) = stepscope.open(run).ranks
    assert [capture.name for capture in rank.captures] == [path.name]
    # Given that they are named themselves, then columns that are not Ascend's are counters beside those that are
    (results,) = stepscope.open(run / "rank0/results").ranks
    assert "Bytes (counter)" in results.result("kernel_details").columns  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["ms210_cpu_graph_schedule", "ms210_cpu_pynative", "comm_2rank/graph_rank0"])
def test_what_lies_between_operators_alone_is_not_idle(
    name: str, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rank,) = stepscope.open(shared_data / "mindspore_cpu" / name).ranks
    found = rank.result("step_trace_time")
    assert isinstance(found, pl.DataFrame)
    assert found["Computing"].null_count() == 0
    assert not {"Data Wait", "Sync", "Host Only", "Idle"} & known(found)
    assert rank.summary.not_recorded == ("data wait", "sync", "host only", "idle")
    assert [len(rank.results[one]) for one in ("idle_time", "idle_reasons")] == [0, 0]
    assert main(["import", str(shared_data / "mindspore_cpu" / name), "--output", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "idle –" in said
    assert "% idle" not in said


def test_host_events_without_the_operators_that_they_launch_say_nothing_of_a_step(shared_data: Path) -> None:
    (rank,) = stepscope.open(shared_data / "mindspore_cpu/runtime_profiler_graph").ranks
    assert shows_no_part_of_a_step(rank)
