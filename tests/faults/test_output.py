"""Where nothing can be written: said before training starts, or training goes on without us."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import stepscope
from stepscope.collect.session import window
from stepscope.errors import OutputError
from stepscope.run import Run
from tests.frameworks.torch.programs import (
    LOOP,
    TRAINING,
    environment,
    forked_run,
    manifest,
    python,
    recorded_spans,
    runs,
    stepscope_run,
)

#: A program that must not begin.
NEVER = "print('trained')"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(NEVER)
    return path


def refuse(output: Path, script: Path, **options: Any) -> str:
    """Run ``script`` into ``output``, which cannot be used, and return the one line that says so."""
    done = stepscope_run(output, script, **options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("stepscope: ")
    assert "--output" in line
    return line


def test_an_output_that_is_a_file(tmp_path: Path, script: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    assert "taken" in refuse(tmp_path / "taken", script)
    assert "taken" in refuse(tmp_path / "taken" / "below", script)
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_output_that_is_a_dangling_link(tmp_path: Path, script: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    refuse(tmp_path / "link", script)


def test_an_output_that_is_a_link_to_a_directory_is_used(tmp_path: Path, script: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    script.write_text(LOOP)
    assert forked_run(tmp_path / "link", script, "12").returncode == 0
    assert len(runs(tmp_path / "real")) == 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to become somebody else")
def test_an_output_that_belongs_to_somebody_else(tmp_path: Path) -> None:
    # Given a directory of root, and a process of nobody
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o755)
    code = f"import stepscope\nstepscope.profile(output={str(locked / 'runs')!r}).start()"
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != folder.parent and folder.name.startswith("pytest"):
            folder.chmod(0o755)
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "OutputError" not in done.stderr and "Permission denied" in done.stderr:
        pytest.skip("nobody cannot read this Python")
    assert "stepscope.errors.OutputError: Cannot write to the output directory" in done.stderr
    assert not (locked / "runs").exists()


def test_a_directory_that_is_gone_and_a_relative_output(tmp_path: Path, script: Path) -> None:
    command = [sys.executable, "-m", "stepscope", "run", str(script)]
    code = f"import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, {command!r})"
    (tmp_path / "gone").mkdir()
    done = python("-c", code, cwd=tmp_path / "gone")
    assert done.returncode == 2
    assert "current directory does not exist" in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("stepscope:")]) == 1


def test_a_directory_that_is_gone_and_an_absolute_output(tmp_path: Path, script: Path) -> None:
    # torch itself needs its directory when it is loaded
    script.write_text(
        TRAINING + "import tempfile\nstep()\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n" + LOOP
    )
    done = forked_run(tmp_path / "runs", script, "12")
    assert (done.returncode, done.stdout) == (0, "trained 12\n"), done.stderr
    assert recorded_spans(runs(tmp_path / "runs")[0])


def test_the_api_refuses_before_training(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    profile = stepscope.profile(output=tmp_path / "taken")
    with pytest.raises(OutputError, match="taken"):
        profile.start()
    # and it is as if nothing had happened
    with stepscope.profile(output=tmp_path / "runs", analyse="later"):
        pass


def test_a_run_that_exists_is_not_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a run of the same program in the same second
    monkeypatch.setattr("time.strftime", lambda *_: "20260101-000000")
    for _ in range(3):
        with stepscope.profile(output=tmp_path, analyse="later"):
            torch.ones(2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{names[0]}{suffix}" for suffix in ("", "-2", "-3")]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_full_at_the_start(small_disk: Path, script: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    assert "No space left" in refuse(small_disk / "runs", script)


MANY = (
    TRAINING
    + """
import stepscope
for number in range(40):
    step()
    if number > 4:
        for _ in range(3000):
            with stepscope.span(os.urandom(16).hex()):
                pass
        for _ in range(1500):
            torch.ones(4).add(1)
print("trained", number + 1)
"""
)


# The times of all steps, and the recorder's blocks, may be refused as well as the journal's.
@pytest.mark.parametrize(
    ("collector", "refused"), [pytest.param("kineto", {1, 2}, marks=pytest.mark.slow), ("native", {1, 2, 3})]
)
def test_a_disk_that_fills_up_while_recording(
    collector: str, refused: set[int], small_disk: Path, script: Path, tmp_path: Path
) -> None:
    # Given a program that records more than the disk holds
    script.write_text(MANY)
    done = forked_run(small_disk / "runs", "-q", "--collector", collector, "--active", "20", script)
    # Then it trains to its end, one line says what happened, and the run can be read
    assert (done.returncode, done.stdout) == (0, "trained 40\n")
    assert "Traceback" not in done.stderr
    (run,) = runs(small_disk / "runs")
    found = manifest(run)
    assert found["status"] == "incomplete: not everything could be written"
    assert found["losses"]["disk_full"] in refused
    assert "the disk is full" in found["collectors"]["torch"]["failed"]
    # and one line says so, also with --quiet
    assert len([line for line in done.stderr.splitlines() if line.startswith("stepscope:")]) == 1, done.stderr
    # the journal is readable up to its last block
    copied = shutil.copytree(run, tmp_path / "copied")
    rank = Run(copied).ranks[0]
    losses = rank.tables["losses"].collect()
    assert {"disk_full", "collector_failed"} <= set(losses["what"])
    # and every step of it is whole, or counted as not recorded
    parts = losses.filter(pl.col("what") == "steps_not_recorded")["count"].sum()
    assert rank.tables["steps"].collect().height + parts > 0


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, script: Path) -> None:
    # Given a limit on the size of files instead of a small disk: Kineto's file does not fit
    script.write_text(
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n" + LOOP
    )
    done = forked_run(tmp_path / "runs", "-q", "--collector", "kineto", "--skip", "1", "--active", "40", script, "42")
    assert (done.returncode, done.stdout) == (0, "trained 42\n")
    (run,) = runs(tmp_path / "runs")
    assert "the disk is full or not writable" in manifest(run)["collectors"]["torch"]["failed"]
    assert manifest(run)["status"] == "incomplete: not everything could be written"
    assert len([line for line in done.stderr.splitlines() if line.startswith("stepscope:")]) == 1
    # Kineto keeps what there is room for
    rank = Run(run).ranks[0]
    assert {"file_cut", "capture_not_written"} <= set(rank.tables["losses"].collect()["what"].to_list())
    found = rank.tables["spans"].collect()["name"].cast(str).to_list()
    assert found.count("aten::addmm") > 2


def test_a_disk_that_is_full_after_the_window(small_disk: Path, script: Path) -> None:
    # Given a program that fills the disk once its window is complete, and has many steps that cannot be kept then
    fill = "with open(sys.argv[1], 'wb', buffering=0) as file:\n            while True: file.write(bytes(512))\n"
    loop = f"for number in range(4000):\n    step()\n    if number != 60: continue\n    try:\n        {fill}"
    script.write_text(f"{TRAINING}import time\n{loop}    except OSError: time.sleep(0.6)\n")
    done = forked_run(small_disk / "runs", "-q", "--steps", "2:6", script, str(small_disk / "filler"))
    assert done.returncode == 0, done.stderr
    # Then the run says so, although there is room for no other manifest
    found = manifest(runs(small_disk / "runs")[0])
    assert (found["status"], found["losses"]) == ("incomplete: not everything could be written", {"disk_full": 1})


def test_a_directory_that_vanishes_while_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = stepscope.profile(output=tmp_path / "runs", analyse="later")
    profile.start()
    torch.ones(2).add(1)
    shutil.rmtree(tmp_path / "runs")
    profile.step()
    profile.stop()
    assert not profile.recorded[0].wait(10) or not (tmp_path / "runs").exists()


#: What happens to the output before the first window opens, in the program itself.
LOST = {
    "a file takes its place": "import shutil; shutil.rmtree(output); open(output, 'w').write('mine')",
    "the program may write nothing any more": "os.setgid(65534); os.setuid(65534)",
}


@pytest.mark.parametrize("how", LOST)
def test_an_output_that_is_lost_before_the_window_opens(how: str, tmp_path: Path, script: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    # Given a program that trains on while the run directory, which has the times of its steps, is lost
    loop = "for number in range(30):\n    if number == 2:\n        output = sys.argv[1]\n        {}\n    step()\n"
    script.write_text(f"{TRAINING}{loop.format(LOST[how])}print(step().item())\n")
    done = forked_run(tmp_path / "runs", script, str(tmp_path / "runs"))
    # Then the training ends as it does without a recording, which is said not to be there
    alone = python(script, str(tmp_path / "other"), cwd=tmp_path, env=environment()) if "file" not in how else None
    assert done.returncode == 0, done.stderr
    assert alone is None or done.stdout == alone.stdout
    assert "Cannot write to the output directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("step", [7, 15], ids=["in the window", "after it"])
def test_a_run_that_the_program_removes_is_said_to_be_removed(step: int, tmp_path: Path, script: Path) -> None:
    loop = f"import shutil\nfor number in range(20):\n    step()\n    if number == {step}: shutil.rmtree(sys.argv[1])\n"
    script.write_text(TRAINING + loop)
    done = forked_run(tmp_path / "runs", script, str(tmp_path / "runs"))
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("stepscope: No results: the run was removed")


def test_a_window_that_cannot_be_opened_later_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an output that stops working between the start and the first window
    profile = stepscope.profile(
        schedule=stepscope.schedule(wait=1, warmup=1, active=1), output=tmp_path / "runs", analyse="later"
    )
    profile.start()
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("in the way")
    # When training goes on
    for _ in range(6):
        profile.step()
    profile.stop()
    # Then it is said once, of the window and of the times of all steps
    assert len([record for record in caplog.records if record.name == "stepscope"]) == 2
    assert profile.recorded == []
    assert window.COMPLETE == "complete"


def test_the_parents_of_an_output_are_private(tmp_path: Path, script: Path) -> None:
    script.write_text(LOOP)
    output = tmp_path / "a" / "b" / "runs"
    done = forked_run(output, script, "12", umask=0o022)
    assert done.returncode == 0, done.stderr
    assert [folder.stat().st_mode & 0o777 for folder in (output, *output.parents[:2])] == [0o700] * 3


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path, script: Path) -> None:
    script.write_text(LOOP)
    home = tmp_path / "no" / "home"
    kept = {key: value for key, value in environment(HOME=str(home)).items() if key != "XDG_CACHE_HOME"}
    done = stepscope_run(tmp_path / "runs", "--collector", "native", script, "12", env=kept)
    assert (done.returncode, done.stdout) == (0, "trained 12\n")
    assert not home.parent.exists(), [*home.parent.rglob("*")]
