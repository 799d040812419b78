"""Analysis: of a profile's windows, offline, of parts of it; metadata; operators."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.compat.mindspore import (
    AicoreMetrics,
    ExportType,
    HostSystem,
    Profiler,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    analyse,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from stepscope.compat.mindspore.profiler import LIMIT
from tests.sizes import first_quick


def runs(directory: str = "data") -> list[Path]:
    return sorted(path.parent for path in Path(directory).glob("*/rank*/manifest.json"))


def results(rank: Path) -> set[str]:
    return {path.name for path in (rank / "results").glob("*")}


def record(steps: int = 4, **arguments: Any) -> Any:
    """Record steps 0 to ``steps`` - 1 in one window, with the spans that stepscope's own annotations make."""
    arguments.setdefault("schedule", schedule(wait=0, active=steps, repeat=1))
    prof = profile(**arguments)
    for number in range(steps):
        with stepscope.span(f"work {number}"):
            time.sleep(0.001)
        prof.step()
    return prof


def test_analysis_writes_the_results_of_every_window_once(capfd: pytest.CaptureFixture[str]) -> None:
    prof = record()
    prof.analyse()
    assert {"step_trace_time.csv", "trace_view.json"} <= results(runs()[0])
    assert "4 steps" in capfd.readouterr().err


def test_a_handler_analyses_quietly_and_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    record(on_trace_ready=tensorboard_trace_handler())
    assert "step_trace_time.csv" in results(runs()[0])
    said = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("USDT:")]  # Kineto's own
    assert said == [f"stepscope: results in {runs()[0].absolute()}/results"]


def test_a_handler_without_analysis_leaves_the_capture() -> None:
    record(on_trace_ready=tensorboard_trace_handler(analyse_flag=False))
    assert results(runs()[0]) == set()


@pytest.mark.slow
def test_analysis_that_is_not_waited_for() -> None:
    record(on_trace_ready=tensorboard_trace_handler(async_mode=True))
    deadline = time.monotonic() + 30
    while "trace_view.json" not in results(runs()[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "step_trace_time.csv" in results(runs()[0])


@pytest.mark.parametrize(
    ("export_type", "present", "absent"),
    [
        ([ExportType.Db], "stepscope.db", "trace_view.json"),
        ([ExportType.Text], "trace_view.json", "stepscope.db"),
    ],
)
def test_results_are_written_as_asked_for(export_type: list[ExportType], present: str, absent: str) -> None:
    record(experimental_config=_ExperimentalConfig(export_type=export_type)).analyse()
    assert present in results(runs()[0])
    assert absent not in results(runs()[0])


def test_parts_of_a_window_and_pretty_files() -> None:
    record().analyse(step_list=[3, 2], pretty=True)
    (rank,) = runs()
    results = rank / "results_steps_1-2"  # those of the whole window stay as they are
    lines = (results / "step_trace_time.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2"]
    communication = (results / "communication.json").read_text()
    assert "\n  " in communication or "{}" in communication


def test_parts_of_windows_that_repeat_without_end() -> None:
    """Both windows hold two steps, and no third one without a step stands beside them."""
    prof = record(schedule=schedule(wait=0, active=2, repeat=0))
    prof.stop()
    prof.analyse(step_list=[1, 2])
    first, second = runs()
    for rank in (first, second):
        [table] = rank.glob("results*/step_trace_time.csv")
        assert len(table.read_text().splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("step_list", "text"),
    first_quick(
        [
            ((1, 2), "the parameter step_list must be a list, but got type <class 'tuple'>, step_list reset to None."),
            (["1"], "the elements of the parameter step_list must be integers, step_list reset to None."),
            ([1, 3], "the elements of the parameter step_list must be continuous integers, step_list reset to None."),
        ]
    ),
)
def test_a_wrong_step_list_is_ignored(step_list: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    record().analyse(step_list=step_list)
    assert f"For profiler, {text}" in caplog.messages
    lines = (runs()[0] / "results" / "step_trace_time.csv").read_text().splitlines()
    assert len(lines) == 1 + 4


def test_steps_that_were_not_recorded_are_said(caplog: pytest.LogCaptureFixture) -> None:
    record().analyse(step_list=[4, 5])
    assert "step_list=[4, 5]" in caplog.messages[-1]
    assert "holds 4 steps. Count them from 1" in caplog.messages[-1]


def test_wrong_arguments_of_analyse(caplog: pytest.LogCaptureFixture) -> None:
    profiler = Profiler(start_profile=False)
    profiler.analyse(pretty=1, mode=2)  # type: ignore[arg-type]
    profiler.analyse(mode="later")
    said = " | ".join(caplog.messages)
    assert "For profiler, the parameter pretty must be bool, but got <class 'int'>, reset to False." in said
    assert "For Profiler.analyse(), the parameter mode must be str, but got <class 'int'>, reset to sync." in said
    assert "the parameter mode must be one of ['sync', 'async'], but got later, reset to sync." in said


@pytest.mark.parametrize("of", [analyse, Profiler.offline_analyse])
def test_offline_analysis_of_a_run_and_of_a_parent_of_runs(of: Callable[..., None]) -> None:
    record()
    record()
    of(str(runs()[0].parent))
    assert [bool(results(rank)) for rank in runs()] == [True, False]
    of("data", pretty=True)
    assert all("step_trace_time.csv" in results(rank) for rank in runs())


def test_the_deprecated_path_of_analyse(caplog: pytest.LogCaptureFixture) -> None:
    record()
    Profiler(start_profile=False).analyse(offline_path="data")
    assert "The parameter 'offline_path' for Profiler.analyse() is deprecated" in " ".join(caplog.messages)
    assert "step_trace_time.csv" in results(runs()[0])


def test_offline_analysis_of_what_mindspore_wrote(shared_data: Path) -> None:
    for name in ("ms210_cpu_graph", "ms210_cpu_pynative"):
        shutil.copytree(shared_data / "mindspore_cpu" / name, Path("theirs") / f"host_1_{name}_ascend_ms")
    before = sorted(Path("theirs").rglob("*"))
    analyse("theirs", max_process_number=2)
    made = sorted(Path("theirs").glob("*/STEPSCOPE_OUTPUT/rank0"))
    assert len(made) == 2
    for rank in made:
        assert {"op_statistic.csv", "trace_view.json"} <= results(rank)
        assert "MatMul" in (rank / "results" / "op_statistic.csv").read_text()
    assert set(before) <= set(Path("theirs").rglob("*"))
    analyse(str(made[0].parent.parent))
    assert sorted(Path("theirs").glob("*/STEPSCOPE_OUTPUT/rank*")) == made


def test_offline_analysis_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Path("empty").mkdir()
    for path in ("empty", "missing"):
        analyse(path)
        assert f"Invalid path: {Path(path).absolute()}. Expected a *_ascend_ms_* directory" in caplog.messages[-1]
    analyse("empty", max_process_number=0)


def test_a_damaged_directory_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    record()
    (Path("data") / "broken_ascend_ms" / "FRAMEWORK").mkdir(parents=True)
    analyse("data", max_process_number="all")  # type: ignore[arg-type]
    assert "Parameter 'max_process_number' should be of type int, but got str. reset to int" in " | ".join(
        caplog.messages
    )
    assert "offline analysis failed" in " ".join(caplog.messages)
    assert "step_trace_time.csv" in results(runs()[0])


def metadata_of(rank: Path) -> dict[str, Any]:
    rows = stepscope.open(rank).tables["metadata"].collect().select("key", "value").rows()
    return {key: json.loads(value) for key, value in rows if key.startswith("t_")}


def test_metadata(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    prof = profile()
    prof.add_metadata("t_text", "value")
    prof.add_metadata_json("t_json", '{"a": [1, 2]}')
    assert caplog.messages == []
    prof.add_metadata("t_text", "another")
    prof.add_metadata_json("t_json", "{no json")
    prof.add_metadata("t_number", 3)  # type: ignore[arg-type]
    prof.add_metadata_json(3, "{}")  # type: ignore[arg-type]
    monkeypatch.setattr("stepscope.compat.mindspore.profiler.LIMIT", 400)
    prof.add_metadata("t_long", "x" * 400)
    prof.stop()
    assert caplog.messages == [
        "t_text is already saved as metadata, override it.",
        "The metadata value must be json format string. Skip this metadata",
        "The key and value of metadata must be string. Skip this metadata.",
        "The key and value of metadata must be string. Skip this metadata.",
        "Too many metadata added. Skip this metadata",
    ]
    assert metadata_of(runs()[0]) == {"t_text": "another", "t_json": {"a": [1, 2]}}
    assert LIMIT == 100 * 1024 * 1024


@pytest.mark.filterwarnings("ignore:mindspore.Profiler.op_analyse is deprecated")
class TestOperators:
    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ((3,), "the parameter op_name must be str or list, but got type <class 'int'>"),
            (("",), "the parameter op_name cannot be None."),
            (([],), "the parameter op_name cannot be None."),
            ((["MatMul", 3],), "the parameter op_name must hold names of operators"),
            (("MatMul", "0"), "the parameter device_id must be int, but got type <class 'str'>"),
        ],
    )
    def test_wrong_types(self, arguments: tuple[Any, ...], text: str) -> None:
        with pytest.raises(TypeError, match=r"For 'Profiler.op_analyse\(\)', ") as raised:
            Profiler(start_profile=False).op_analyse(*arguments)
        assert text in str(raised.value)

    def test_before_anything_was_recorded(self) -> None:
        with pytest.raises(RuntimeError, match="before anything was recorded"):
            Profiler(start_profile=False).op_analyse("MatMul")
        with pytest.raises(RuntimeError, match="while recording"):
            Profiler().op_analyse("MatMul")

    def test_an_operator_that_did_not_run(self) -> None:
        profiler = Profiler()
        profiler.stop()
        with pytest.raises(RuntimeError, match="The information of <MatMul> is not found"):
            profiler.op_analyse("MatMul")

    @pytest.mark.usefixtures("lenient")
    def test_without_exceptions(self, caplog: pytest.LogCaptureFixture) -> None:
        assert Profiler(start_profile=False).op_analyse(3) is None  # type: ignore[arg-type]
        assert "Call to op_analyse failed. Exception: For 'Profiler.op_analyse()'" in caplog.messages[-1]


SWITCHES: dict[str, dict[str, Any]] = {
    "activities NPU": {"activities": [ProfilerActivity.NPU]},
    "activities GPU": {"activities": [ProfilerActivity.GPU]},
    "aic_metrics": {"profiler_level": ProfilerLevel.Level1, "aic_metrics": AicoreMetrics.Memory},
    "l2_cache": {"l2_cache": True},
    "hbm_ddr": {"hbm_ddr": True},
    "pcie": {"pcie": True},
    "sys_interconnection": {"sys_interconnection": True},
    "sync_enable=False": {"sync_enable": False},
}


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU")
@pytest.mark.filterwarnings("ignore:The parameter")
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_cannot_be_served_is_one_warning_and_one_loss(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        Profiler(**SWITCHES[name]).stop()
    assert len([message for message in caplog.messages if f"stepscope: {name} records nothing here" in message]) == 1
    for rank in runs():
        losses = stepscope.open(rank).tables["losses"].collect().filter(what="switch_unavailable")
        assert losses["source"].to_list() == [name]


SERVED: dict[str, Any] = {
    "profile_memory": True,
    "with_stack": True,
    "record_shapes": True,
    "data_process": True,
    "parallel_strategy": True,
    "sys_io": True,
    "mstx": True,
    "host_sys": [HostSystem.CPU, HostSystem.MEM, HostSystem.DISK, HostSystem.NETWORK],
}


def test_the_other_switches_are_options_of_the_recording(caplog: pytest.LogCaptureFixture) -> None:
    Profiler(**SERVED).stop()
    options = stepscope.open(runs()[0]).manifest["options"]
    expected = {**SERVED, "host_sys": ["cpu", "mem", "disk", "network"]}
    del expected["mstx"]
    assert {name: options[name] for name in expected} == expected
    assert not [message for message in caplog.messages if "records nothing" in message]


EXITING = """
import sys
import stepscope.compat.mindspore as m
prof = m.profile(schedule=m.schedule(wait=0, active=9), on_trace_ready=lambda p: print("ready", p.step_num))
shared = m.profile()
prof.step()
prof.step()
{end}
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("raise ValueError", 1)])
def test_an_interpreter_that_exits_without_stop_loses_nothing(end: str, code: int) -> None:
    command = [sys.executable, "-c", EXITING.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code
    assert done.stdout == "ready 2\n"
    assert "profile is stopped at the end of the program." in done.stderr
    (rank,) = runs()
    assert stepscope.open(rank).tables["steps"].collect()["number"].to_list() == [0, 1]
