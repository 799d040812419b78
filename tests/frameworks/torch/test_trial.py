"""The trial that says whether GPUs are recorded natively: run for real as far as it goes without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from stepscope import trial
from stepscope.collect.options import Activity, Options
from stepscope.collect.torch import native_build
from stepscope.collect.torch import native_choice as choice
from stepscope.run import Run
from tests.frameworks.torch.programs import environment
from tests.unit.collect.cuda import cupti_stand_in

KNOWN = native_build.installed(torch)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, which has the built recorder."""
    built = native_build.obtain(KNOWN)
    home = tmp_path / "cache"
    (home / "stepscope").mkdir(parents=True, mode=0o700)
    for file in (built, built.with_suffix(".sha256")):
        shutil.copy(file, home / "stepscope")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.mark.slow
def test_both_record_the_same_training() -> None:
    assert trial.attempt("cpu") == ""


@pytest.mark.slow
def test_why_one_of_them_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial.attempt("nowhere").startswith("native fails in a trial: RuntimeError: ")
    monkeypatch.setenv("STEPSCOPE_NATIVE", "0")
    assert trial.attempt("cpu") == "switched off by STEPSCOPE_NATIVE=0"


def test_without_a_gpu_nothing_is_tried() -> None:
    assert trial.check() is None


@pytest.mark.parametrize(
    ("answer", "state", "said"),
    [
        ({"gpus": ""}, "yes", "recordings now use it"),
        ({"gpus": "device: 1 fewer"}, "partly", "device: 1 fewer"),
        ({"error": "it crashes its process (SIGSEGV)"}, "partly", "SIGSEGV"),
    ],
)
def test_the_answer_is_a_check(answer: dict[str, str], state: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "ask", lambda *_, **__: answer)
    found = trial.check()
    assert found is not None
    assert (found.state, said in found.detail) == (state, True)


@pytest.mark.usefixtures("cache")
def test_a_gpu_is_kinetos_until_a_trial_has_found_no_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    driver = tmp_path / "driver"
    driver.write_text("580.1")
    monkeypatch.setattr(native_build, "DRIVER_VERSION", driver)
    assert "`stepscope doctor --build` has not tried" in str(choice.reason_for_kineto(Options()))
    native_build.remember_gpus(KNOWN, "device: 1 fewer")
    assert choice.reason_for_kineto(Options()) == "work of cuda is left to Kineto: device: 1 fewer"
    assert choice.reason_for_kineto(Options(activities=(Activity.CPU,))) is None
    assert choice.reason_for_kineto(Options(sample=0.5)) is None  # which Kineto cannot
    native_build.remember_gpus(KNOWN, "")
    assert choice.reason_for_kineto(Options()) is None
    driver.write_text("590.2")  # another driver
    assert "has not tried" in str(choice.reason_for_kineto(Options()))
    monkeypatch.setattr(torch.version, "cuda", None)  # a torch for AMD's GPUs calls them cuda as well
    assert "does not know it" in str(choice.reason_for_kineto(Options()))


UNENDED = """
import torch
from stepscope import trial
from stepscope.collect.torch import native_build
torch.cuda.is_available, torch.version.cuda = lambda: True, "13.0"
known = native_build.installed(torch)
native_build.remember_gpus(known, "")
def attempt(device):
    raise SystemError("the driver hangs")
trial.attempt = attempt
try:
    trial.main()
except SystemError:
    raise SystemExit(native_build.reason_against_gpus(known))
"""


@pytest.mark.usefixtures("cache")
@pytest.mark.slow
def test_a_trial_that_does_not_end_takes_back_what_one_before_has_found() -> None:
    done = subprocess.run([sys.executable, "-c", UNENDED], capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr.splitlines()[-1] == "a trial did not finish"


PROGRAM = """
import ctypes
import sys
import torch
from torch import library
import stepscope
from stepscope.collect.cuda import cupti_library
from stepscope.collect.torch import native_build

# What a torch with CUDA says; the libraries of CUDA are stand-ins.
torch.cuda.device_count, torch.version.cuda = lambda: 1, "13.0"
if sys.argv[2:]:
    native_build.remember_gpus(native_build.installed(torch), "")
cupti = ctypes.CDLL(cupti_library.load().path)
driver = ctypes.CDLL("libcuda.so.1")

def launch(values):
    cupti.stand_in_launch(b"_Z3addPf", 5)
    return values.clone()

ours = library.Library("ours", "DEF")
ours.define("launch(Tensor values) -> Tensor")
ours.impl("launch", launch, "CPU")
values = torch.ones(3)
with stepscope.profile(output=sys.argv[1], analyse="later"):
    torch.ops.ours.launch(values)
    values.add(1)
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch brings a CUPTI of its own")
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("tried", [True, False])
def test_after_a_trial_operators_are_recorded_natively_and_kernels_by_cupti(tmp_path: Path, tried: bool) -> None:
    home = tmp_path / "cuda"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "runs"), *(["tried"] if tried else [])],
        env=environment(**cupti_stand_in.build(home), XDG_CACHE_HOME=os.environ["XDG_CACHE_HOME"]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    (rank,) = Run(path).ranks
    collectors = rank.manifest["collectors"]
    if not tried:
        assert collectors["torch"]["recorder"] == "kineto"
        assert "has not tried" in collectors["torch"]["native"]
        assert "Kineto records the GPU" in collectors["cupti"]["unavailable"]
        return
    assert collectors["torch"]["recorder"] == "native"
    assert collectors["cupti"]["cuda"] == "13.0"
    spans = rank.tables["spans"].select("id", name=pl.col("name").cast(pl.String))
    kernels = rank.tables["kernels"].join(spans.rename({"id": "operator"}), on="operator", how="left").collect()
    assert kernels["name"].to_list() == ["ours::launch"] * 5
    assert kernels["launch"].null_count() == 0
