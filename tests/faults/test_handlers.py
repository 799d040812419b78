"""What a user's function or a collector raises is counted and said once; training does not see it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import stepscope
from stepscope.collect.protocol import Context
from stepscope.collect.registry import make_collectors
from stepscope.collect.schedule import Action
from stepscope.collect.session import window
from stepscope.collect.session.recorded import RecordedWindow
from tests.frameworks.torch.programs import manifest, names, recorded_spans, runs


def multiply() -> None:
    torch.ones(8, 8).mm(torch.ones(8, 8))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "stepscope"]


def test_a_handler_that_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_recorded: RecordedWindow) -> None:
        message = "handler"
        raise RuntimeError(message)

    # When the handler fails in the middle of training, and at its end
    schedule = stepscope.schedule(wait=0, warmup=1, active=1, repeat=2)
    with stepscope.profile(schedule=schedule, on_trace_ready=broken, output=tmp_path, analyse="later") as profile:
        for _ in range(3):
            multiply()
            profile.step()
        multiply()
    assert [found.wait(10) for found in profile.recorded] == [True, True]
    for run in runs(tmp_path):
        found = manifest(run)
        assert found["losses"]["handler_failed"] == 1
        assert found["messages"][-1] == "handler_failed: RuntimeError: handler"
        assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 1
    assert "training goes on" in said(caplog)[0]


def test_a_handler_that_interrupts_is_the_users_wish(tmp_path: Path) -> None:
    def interrupt(_recorded: RecordedWindow) -> None:
        raise KeyboardInterrupt

    profile = stepscope.profile(on_trace_ready=interrupt, output=tmp_path, analyse="later")
    profile.start()
    with pytest.raises(KeyboardInterrupt):
        profile.stop()
    profile.stop()
    (recorded,) = profile.recorded
    assert recorded.wait(10)


def test_a_schedule_that_raises_ends_the_recording_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(step: int) -> Action:
        if step == 3:
            message = "no such step"
            raise IndexError(message)
        return Action.RECORD

    with stepscope.profile(schedule=broken, output=tmp_path, analyse="later") as profile:
        for _ in range(3):
            multiply()
            profile.step()
        multiply()
    (run,) = runs(tmp_path)
    assert profile.recorded[0].wait(10)
    assert manifest(run)["status"] == "failed at step 3"
    assert manifest(run)["exception"] == "IndexError: no such step"
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 3
    assert len(said(caplog)) == 1


class Broken:
    """A collector that fails in one of its members."""

    name = "broken"

    def __init__(self, where: str) -> None:
        self._where = where
        self.calls: list[str] = []

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what == self._where:
            message = f"in {what}\nand more"
            raise ValueError(message)

    def available(self) -> str | None:
        self._do("available")
        return None

    def prepare(self, context: Context) -> None:
        self._do("prepare")

    def start(self) -> None:
        self._do("start")

    def stop(self) -> list[Path]:
        self._do("stop")
        return []

    def describe(self) -> dict[str, object]:
        if "stop" in self.calls:
            self._do("describe")
        return {"samples": 0}


@pytest.mark.parametrize("where", ["available", "prepare", "start", "stop", "describe"])
def test_a_collector_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    # Given a collector before the others that fails in one place
    broken: Any = Broken(where)
    monkeypatch.setattr(window, "make_collectors", lambda options: [broken, *make_collectors(options)])
    with stepscope.profile(output=tmp_path, analyse="later") as profile:
        multiply()
        profile.step()
    assert profile.recorded[0].wait(10)
    # Then the manifest has its message on one line, everything else was recorded, and it was stopped
    (run,) = runs(tmp_path)
    collectors = manifest(run)["collectors"]
    assert collectors["broken"]["failed"] == f"ValueError: in {where} and more"
    assert [name for name, state in collectors.items() if "failed" in state] == ["broken"]
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 1
    assert "stop" in broken.calls


def test_torch_that_refuses_to_prepare_is_not_asked_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given torch failing before it records; starting or stopping it then crashes the process
    def refuse(*_arguments: object, **_more: object) -> None:
        message = "no room"
        raise RuntimeError(message)

    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd.profiler, "_prepare_profiler", refuse)
        with stepscope.profile(collector="kineto", output=tmp_path, analyse="later") as profile:
            multiply()
            profile.step()
    assert profile.recorded[0].wait(10)
    (run,) = runs(tmp_path)
    assert manifest(run)["collectors"]["torch"]["failed"] == "RuntimeError: no room"
    assert manifest(run)["captures"] == ["capture/journal.ssj", "capture/steps.ssj"]
    # and the next one works
    with stepscope.profile(collector="kineto", output=tmp_path / "next", analyse="later") as profile:
        multiply()
    assert profile.recorded[0].wait(10)
    assert names(recorded_spans(runs(tmp_path / "next")[0]), "cpu_op")["aten::mm"] == 1


def test_an_analysis_that_fails_is_said_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with stepscope.profile(output=tmp_path) as profile:
        multiply()
    (recorded,) = profile.recorded
    assert not recorded.wait(30)
    (run,) = runs(tmp_path)
    assert "/nowhere/python" in manifest(run)["analysis"]
    assert names(recorded_spans(run), "cpu_op")["aten::mm"] == 1


def test_results_are_computed_beside_the_training(tmp_path: Path) -> None:
    with stepscope.profile(record_shapes=True, output=tmp_path) as profile:
        for _ in range(3):
            multiply()
            profile.step()
    (recorded,) = profile.recorded
    assert recorded.wait(120), (recorded.rank_path / "analysis.log").read_text()
    assert (recorded.rank_path / "results" / "op_statistic.csv").read_text().count("aten::mm") >= 1
    assert recorded.open().tables["steps"].collect()["number"].to_list() == [0, 1, 2]
