"""``fluid.profiler`` on a program of PyTorch: the same calls, the names of PyTorch's operators."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import stepscope.compat.fluid.profiler as profiler
from stepscope.compat.fluid import profile_file, report
from stepscope.read.paddle import fluid_profile
from stepscope.trace.losses import LossLedger
from tests.frameworks.torch.programs import TRAINING

#: What one step of the program does once; operators of the forward are twice what the layers are.
ONCE = ("aten::mean", "aten::relu", "MeanBackward0", "ReluBackward0", "Optimizer.step#SGD.step")


@pytest.fixture(scope="module")
def namespace() -> dict[str, object]:
    """The training program's names; one step has been made."""
    names: dict[str, object] = {}
    exec(TRAINING, names)
    _step(names)
    return names


def _step(names: dict[str, object]) -> None:
    names["step"]()  # type: ignore[operator]


def _events(path: Path) -> Counter[str]:
    ledger = LossLedger(path.name)
    return Counter(fluid_profile.load(path, ledger).events["name"].to_list())


def test_report_and_file(namespace: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / "profile"
    with profiler.profiler("All", "total", path, "OpDetail"):
        for _ in range(3):
            _step(namespace)
    printed = capsys.readouterr().out
    events = profile_file.reported(fluid_profile.load(path, LossLedger("profile")))
    again = report.render(events, report.FluidReportOptions("All", "total", "OpDetail"))
    # The file does not say which events are operators, so that one inside a range is not called as it is printed.
    numbers = [[line.split()[1:] for line in text.splitlines()] for text in (printed, again)]
    assert numbers[0] == numbers[1]
    found = _events(path)
    assert {name: found[name] for name in ONCE} == dict.fromkeys(ONCE, 3)
    assert found["aten::linear"] == found["aten::linear/aten::addmm"] == found["aten::linear/compute"] == 6
    assert re.search(r"^thread\d::aten::linear +6 ", printed, re.MULTILINE)
    assert "autograd::engine" not in printed


def test_reset_leaves_exactly_the_later_steps(namespace: dict[str, object], tmp_path: Path) -> None:
    profiler.start_profiler("CPU")
    for number in range(10):
        if number == 2:
            profiler.reset_profiler()
        _step(namespace)
    profiler.stop_profiler("total", tmp_path / "profile")
    found = _events(tmp_path / "profile")
    assert {name: found[name] for name in ONCE} == dict.fromkeys(ONCE, 8)


@pytest.mark.slow
def test_nested_blocks_in_a_loop(
    namespace: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with profiler.profiler("CPU", None, tmp_path / "outer"):
        for number in range(3):
            with profiler.profiler("CPU", None, tmp_path / f"inner{number}"):
                _step(namespace)
            _step(namespace)
    assert capsys.readouterr().out.count("Event Summary") >= 4
    assert [_events(tmp_path / f"inner{number}")["aten::mean"] for number in range(3)] == [1, 1, 1]
    assert _events(tmp_path / "outer")["aten::mean"] == 6


def test_nothing_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("CPU", "GPU", "All"):
        with profiler.profiler(state, "total", tmp_path / state, "OpDetail"):
            pass
        assert f"Place: {report.PLACES[state]}" in capsys.readouterr().out
        assert _events(tmp_path / state) == {}


def test_another_profile_is_running(
    namespace: dict[str, object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training goes on, and what there is not is said."""
    import stepscope

    with stepscope.profile(output=tmp_path / "runs", analyse="later"):
        profiler.start_profiler("CPU")
        profiler.start_profiler("CPU")
        _step(namespace)
        profiler.reset_profiler()
        profiler.stop_profiler("total", tmp_path / "profile")
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "profile").exists()
    assert "nothing is recorded: Another stepscope profile is running" in caplog.text
    assert "nothing was recorded; no report is printed and no profile file is written" in caplog.text


def test_a_report_that_cannot_be_made_keeps_the_run(
    namespace: dict[str, object],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something wrote over the recording: the program goes on, and the log says where the run is."""
    monkeypatch.setenv("STEPSCOPE_FLUID_RUNS", str(tmp_path / "runs"))
    profiler.start_profiler("CPU")
    _step(namespace)
    (run,) = (tmp_path / "runs").iterdir()
    for written in (run / "rank0" / "capture").iterdir():
        written.write_text("no recording")
    profiler.stop_profiler("total", tmp_path / "profile")
    assert f"The recorded runs are in {run}" in caplog.text
    assert run.is_dir()
