"""The doctor tries things for real, and survives what is broken."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import threading
from pathlib import Path

import psutil
import pytest

from stepscope.collect.doctor import diagnosis
from stepscope.collect.doctor.diagnosis import Check, diagnose, probe_torch
from stepscope.collect.surgery import verified
from stepscope.collect.surgery.python_layout import refusal

STATES = {"yes", "partly", "no"}


def found(checks: list[Check], name: str) -> Check:
    (check,) = [check for check in checks if check.name == name]
    return check


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the slow part."""
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: {"error": "not installed", "remedy": "pip install torch"})


@pytest.fixture
def broken_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module called torch that a child process imports instead of the real one."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "torch.py"


def test_the_installed_torch_is_tried(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = set(threading.enumerate()), list(sys.meta_path)
    checks = diagnose(tmp_path / "out")
    assert {check.state for check in checks} <= STATES
    assert torch.__version__ in found(checks, "PyTorch").detail
    assert found(checks, "operators").state == "yes"
    gpu = found(checks, "GPU kernels")
    assert (gpu.state == "yes") == torch.cuda.is_available()
    assert gpu.state == "yes" or gpu.remedy
    assert found(checks, "data waits").state == "yes"
    for name in ("CUDA kernels (CUPTI)", "GPU counters (NVML)"):
        assert (found(checks, name).detail == "this machine has no NVIDIA GPU") == (not Path("/dev/nvidiactl").exists())
    assert (set(threading.enumerate()), list(sys.meta_path)) == before


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ImportError('libc10.so: cannot open')", "cannot be imported: ImportError: libc10.so: cannot open"),
        ("import os; os.abort()", "crashes its process (SIGABRT)"),
        ("import os; os._exit(3)", "cannot be imported: exit code 3"),
        ("print('hello'); raise SystemExit('stopped')", "cannot be imported: stopped"),
        ("", "cannot be imported: AttributeError: module 'torch' has no attribute '__version__'"),
    ],
)
def test_a_broken_torch_hurts_nobody(broken_torch: Path, program: str, said: str) -> None:
    broken_torch.write_text(program)
    facts = probe_torch()
    assert said in facts["error"]
    assert facts["remedy"].endswith(("torch", "torch'`."))


def test_a_torch_that_hangs_is_given_up(broken_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_torch.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(diagnosis, "PATIENCE", 0.5)
    assert "takes longer than" in probe_torch()["error"]


def test_a_missing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert probe_torch() == {"error": "not installed", "remedy": "pip install torch"}


FACTS = {
    "version": "2.13.0+cu130",
    "path": "/site-packages/torch",
    "kineto": True,
    "cuda_build": "13.0",
    "hip_build": None,
    "cuda": {"devices": ["NVIDIA H200"]},
    "activities": ["CPU", "CUDA"],
    "trial": {"host": 9, "device": 3},
    "distributed": ["nccl", "gloo"],
    "dataloader": True,
    "recorder": {"built": ""},
}


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({}, "yes", "1 x NVIDIA H200, CUDA 13.0; 3 device events"),
        ({"cuda_build": None}, "no", "built without CUDA"),
        ({"cuda": {"devices": []}}, "no", "no GPU is visible to CUDA 13.0 (CUDA_VISIBLE_DEVICES='')"),
        ({"cuda": {"error": "RuntimeError: driver too old"}}, "no", "driver too old"),
        ({"activities": ["CPU"]}, "no", "built without CUPTI"),
        ({"trial": {"host": 9, "device": 0}}, "no", "CUPTI delivered nothing"),
        ({"trial": {"error": "RuntimeError: CUPTI_ERROR"}}, "no", "CUPTI_ERROR"),
    ],
)
def test_why_kernels_cannot_be_recorded(
    change: dict[str, object], state: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: {**FACTS, **change})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = found(diagnose(tmp_path), "GPU kernels")
    assert check.state == state
    assert said in check.detail


@pytest.mark.parametrize("left", [None, "device: 1 fewer"])
def test_who_records_the_gpus_is_said(left: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {**FACTS, "recorder": {"built": "/cache/recorder.so", "gpus": left}}
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: facts)
    said = "built: /cache/recorder.so" + ("; Kineto records GPUs: device: 1 fewer" if left else "")
    assert found(diagnose(tmp_path), "native recorder").detail == said


def test_other_activities_and_profilers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = {**FACTS, "activities": ["CPU", "XPU"], "kineto": False, "distributed": [], "dataloader": {"error": "gone"}}
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: facts)
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libinject.so")
    checks = diagnose(tmp_path)
    assert found(checks, "XPU kernels").state == "yes"
    assert found(checks, "operators").detail == "this PyTorch was built without Kineto"
    assert found(checks, "collectives").state == "no"
    assert found(checks, "data waits").detail == "gone"
    assert "CUDA_INJECTION64_PATH" in found(checks, "other profilers").detail


@pytest.mark.usefixtures("without_torch")
def test_counters_a_machine_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    check = found(diagnose(tmp_path), "host counters")
    assert check.state == "partly"
    assert "network (OSError: This machine shows no network.)" in check.detail


@pytest.mark.usefixtures("without_torch")
def test_the_fast_reader_and_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPSCOPE_NATIVE", "0")
    check = found(diagnose(tmp_path), "fast Kineto reader")
    assert (check.state, check.detail) == ("partly", "switched off by STEPSCOPE_NATIVE=0")
    assert "install a C compiler" in check.remedy


@pytest.mark.usefixtures("without_torch")
def test_the_rank_and_who_told_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert found(diagnose(tmp_path), "rank").detail == "3 of 8 (local rank 1, from torchrun)"


@pytest.mark.usefixtures("without_torch")
def test_the_output_directory_is_proven_and_left_as_it_was(tmp_path: Path) -> None:
    assert found(diagnose(tmp_path / "a" / "b"), "output").state == "yes"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    check = found(diagnose(tmp_path / "file" / "below"), "output")
    assert (check.state, check.remedy) == ("no", "Choose another with --output.")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("without_torch")
def test_findings_are_plain_values(tmp_path: Path) -> None:
    described = [check.describe() for check in diagnose(tmp_path)]
    assert json.loads(json.dumps(described)) == described
    assert all(set(check) == {"name", "state", "detail", "remedy"} and check["detail"] for check in described)


@pytest.mark.parametrize(
    ("recorder", "said"),
    [
        ({"built": "/cache/recorder.so"}, "recorded by the native recorder, or by Kineto for what it does not serve"),
        ({"reason": "no C++ compiler was found (c++, g++ or clang++)"}, "recorded by Kineto; 9 host events in a trial"),
    ],
)
def test_who_records_operators_is_said(
    recorder: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(diagnosis, "probe_torch", lambda: {**FACTS, "recorder": recorder})
    assert found(diagnose(tmp_path), "operators").detail.startswith(said)


@pytest.mark.usefixtures("without_torch")
def test_the_use_of_each_compiler_is_said_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    checks = diagnose(tmp_path / "out")
    assert "install of stepscope from source" in found(checks, "C compiler").remedy
    assert "native recorder of PyTorch's operators" in found(checks, "C++ compiler").remedy


@pytest.mark.usefixtures("without_torch")
def test_the_gate_to_the_memory_of_other_libraries_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Given a build of a framework's library, a damaged one, and the builds that were verified
    library, damaged = tmp_path / "libphi_core.so", tmp_path / "libmindspore_profiler.so"
    shutil.copyfile(sys.executable, library)
    damaged.write_bytes(b"\x7fELF")
    identity, machine = verified.identify(library)
    installed = verified.installed
    monkeypatch.setattr(verified, "installed", lambda: installed([library, damaged]))
    # When it is not among them, the doctor says so, and what to read
    check = found(diagnose(tmp_path), "Paddle internals")
    assert check.state == "partly"
    assert identity in check.detail
    assert "README.md" in check.remedy
    assert "is not a 64-bit little-endian ELF file" in found(diagnose(tmp_path), "MindSpore internals").detail
    # When it is, the surgery is on
    (row,) = [one.row for one in installed([library])]
    monkeypatch.setattr(verified, "BUILDS", (row,))
    assert found(diagnose(tmp_path), "Paddle internals").state == "yes"
    assert machine == row.machine


@pytest.mark.usefixtures("without_torch")
def test_it_says_whether_stacks_are_sampled_and_what_is_unknown_if_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refusal() is None:
        check = found(diagnose(tmp_path / "out"), "sampled Python stacks")
        assert check.state in ("yes", "partly")
        assert "test read" in check.detail or "ptrace_scope" in check.detail
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    check = found(diagnose(tmp_path / "out"), "sampled Python stacks")
    assert (check.state, "riscv64" in check.detail) == ("no", True)
    assert "unknown" in check.remedy
