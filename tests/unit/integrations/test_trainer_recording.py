"""A recording that follows a trainer: what is said of phases, and a package that is not there."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.errors import UsageError
from stepscope.integrations import trainer_recording
from stepscope.integrations.trainer_recording import TrainerRecording


class Trainer:
    """Saves, as a trainer does."""

    def save(self) -> str:
        return "saved"


def events(directory: Path) -> list[str]:
    (run,) = directory.glob("*/rank0")
    names: list[str] = stepscope.open(run.parent).ranks[0].tables["run_events"].collect()["name"].cast(str).to_list()
    return [name for name in names if name in ("evaluation", "checkpoint", "logging")]


def test_phases_last_until_the_next_one_or_the_end_of_the_step(tmp_path: Path) -> None:
    save = Trainer.save
    recording = TrainerRecording({"output": tmp_path, "analyse": "later", "quiet": True})
    recording.phase("evaluation")  # not begun: nothing is noted
    recording.begin()
    recording.named(Trainer, "save", "checkpoint")
    recording.phase("evaluation")
    assert Trainer().save() == "saved"  # a part of the evaluation
    recording.step()
    assert recording.doing is None
    assert Trainer().save() == "saved"
    recording.phase("logging")
    said: list[str] = []
    recording.end(said.append)
    recording.end(said.append)
    assert events(tmp_path) == ["evaluation", "checkpoint", "logging"]
    assert len(said) == 1
    assert "stepscope report --findings" in said[0]
    assert Trainer.save is save


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"steps": "all"}, [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        ({"steps": "0"}, [[0]]),
        ({"steps": "2-4"}, [[2, 3, 4]]),
        ({"epochs": "0"}, [[0, 1, 2]]),
        ({"epochs": "1-2"}, [[3, 4, 5, 6, 7, 8]]),
        ({"schedule": stepscope.schedule(wait=1, warmup=1, active=2, repeat=2)}, [[2, 3], [6, 7]]),
    ],
)
def test_windows_are_of_steps_or_epochs(tmp_path: Path, options: dict[str, Any], recorded: list[list[int]]) -> None:
    recording = TrainerRecording({"output": tmp_path, "analyse": "later", "quiet": True, **options})
    recording.begin()
    for step in range(1, 10):  # three in each epoch
        recording.step(step // 3)
    recording.end()
    runs = [window.open() for window in recording.profile.recorded]
    assert [run.ranks[0].tables["steps"].collect()["number"].to_list() for run in runs] == recorded


def test_a_second_training_counts_its_epochs_anew_and_goes_on_where_it_is_told(tmp_path: Path) -> None:
    recording = TrainerRecording({"output": tmp_path, "analyse": "later", "quiet": True, "epochs": "2"})
    for first in (0, 2):
        recording.begin(first)
        for _ in range(3):
            recording.step()
        recording.epoch(3)
        recording.step()
        recording.end()
    (window,) = recording.profile.recorded
    assert window.open().ranks[0].tables["steps"].collect()["number"].to_list() == [0, 1, 2, 3]
    assert window.manifest["schedule"] == "epochs 2 to 2"
    assert window.manifest["door"] == "trainer"


@pytest.mark.parametrize("other", [{"steps": "1"}, {"schedule": stepscope.schedule(wait=1, warmup=1, active=2)}])
def test_only_one_option_selects_steps(other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="each say what is recorded"):
        TrainerRecording({"epochs": "1", **other})


@pytest.mark.slow
def test_loggers_get_each_recorded_step_and_then_all(tmp_path: Path) -> None:
    schedule = stepscope.schedule(wait=1, warmup=0, active=2, repeat=2)
    recording = TrainerRecording({"output": tmp_path, "quiet": True, "schedule": schedule})
    rows: list[tuple[int | None, dict[str, float]]] = []
    for _ in range(2):  # the second training tells of itself alone
        rows.clear()
        recording.begin()
        for _ in range(6):
            sum(range(100_000))
            recording.step()
        recording.end(lambda _: None, lambda figures, number: rows.append((number, figures)))
    assert [number for number, _ in rows] == [1, 2, 4, 5, None]
    runs = [window.open().ranks[0].tables["steps"].collect() for window in recording.profile.recorded[-2:]]
    wanted = [dur / 1e9 for run in runs for dur in run["dur"].to_list()]
    assert [figures["stepscope/step/seconds"] for _, figures in rows[:-1]] == pytest.approx(wanted)
    assert rows[-1][1]["stepscope/steps"] == 2


@pytest.mark.parametrize("skipped", [False, True])
def test_a_wait_for_findings_is_announced_and_ctrl_c_skips_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: bool
) -> None:
    monkeypatch.setattr(trainer_recording, "SILENCE", 0.0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if skipped and len(said) == 1:
            signal.raise_signal(signal.SIGINT)

    recording = TrainerRecording({"output": tmp_path, "quiet": True})
    recording.begin()
    recording.step()
    recording.end(say)
    assert "2 minutes at most. Ctrl-C skips it" in said[0]
    (recorded,) = recording.profile.recorded
    assert f"stepscope report --findings {recorded.path} shows" in said[-1]
    assert skipped == said[-1].endswith("shows where the steps go.")
    assert recorded.wait()  # the analysis goes on


@pytest.mark.parametrize("error", [None, ValueError("boom")])
def test_a_training_that_did_not_end_leaves_the_next_to_its_own_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    options = {"output": tmp_path, "analyse": "later", "quiet": True}
    first, second = TrainerRecording(options), TrainerRecording(options)
    first.begin()
    first.step()
    monkeypatch.setattr(sys, "last_value", error, raising=False)  # as the interpreter and IPython do
    second.begin()
    assert (first.running, second.running) == (False, True)
    second.step()
    second.end()
    (failed,), (ended,) = first.profile.recorded, second.profile.recorded
    assert failed.manifest["status"] == ("failed at step 1" if error else "complete")
    assert ended.manifest["status"] == "complete"


def test_a_training_on_another_thread_goes_on(tmp_path: Path) -> None:
    options = {"output": tmp_path, "analyse": "later", "quiet": True}
    first, second = TrainerRecording(options), TrainerRecording(options)
    first.begin()
    thread = threading.Thread(target=second.begin)
    thread.start()
    thread.join()
    assert (first.running, second.running) == (True, False)
    first.end()


def test_a_program_that_fails_in_a_training_leaves_its_error(tmp_path: Path) -> None:
    program = """
from stepscope.integrations.trainer_recording import TrainerRecording
recording = TrainerRecording({"output": "runs", "analyse": "later", "quiet": True})
recording.begin()
recording.step()
raise ValueError("boom")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ValueError: boom"
    (run,) = (tmp_path / "runs").iterdir()
    manifest = stepscope.open(run).ranks[0].manifest
    assert (manifest["status"], manifest["exception"]) == ("failed at step 1", "ValueError")


def test_a_training_that_ends_before_its_window_is_told_in_its_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = TrainerRecording({"output": tmp_path, "quiet": True, "steps": "10-14"})
    recording.begin()
    recording.step()
    recording.end()
    (warning,) = caplog.messages
    assert "ended in step 1" in warning
    assert "Record earlier steps" in warning


def test_a_phase_that_is_unknown_is_refused() -> None:
    with pytest.raises(UsageError, match="evaluation, checkpoint, logging"):
        stepscope.profile().phase("validation")


@pytest.mark.parametrize("package", ["transformers", "lightning", "accelerate", "keras", "mindspore", "paddle"])
def test_a_package_that_is_missing_is_one_line(package: str) -> None:
    if find_spec(package):
        pytest.skip(f"{package} is installed here")
    program = f"import stepscope.integrations.{package}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode
    last = done.stderr.splitlines()[-1]
    assert f"stepscope.integrations.{package} needs {package}" in last
    assert "Install it" in last
