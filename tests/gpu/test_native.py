"""On a GPU the native recorder with CUPTI records what Kineto does, and serves once that has been tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope import trial

from .conftest import Window

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def test_both_record_the_same() -> None:
    assert trial.attempt("cuda") == ""


def served(output: Path) -> Window:
    """Record a product with the collector that nobody named."""
    left = torch.randn(512, 512, device="cuda")
    with stepscope.profile(output=output, analyse="later") as profile:
        left.mm(left)
        torch.cuda.synchronize()
    (recorded,) = profile.recorded
    assert recorded.wait(120)
    return Window(recorded.path)


def test_after_the_doctor_has_tried_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.cli.main import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = served(tmp_path / "before")
    assert "has not tried" in before.manifest["collectors"]["torch"]["native"]
    capsys.readouterr()
    assert main(["doctor", "--build", "--json", "--output", str(tmp_path)]) == 0
    findings: dict[str, Any] = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert findings["GPU, natively"]["state"] == "yes", findings["GPU, natively"]
    after = served(tmp_path / "after")
    assert after.manifest["collectors"]["torch"]["recorder"] == "native"
    for window in (before, after):
        kernels = window.work("kernel")
        assert kernels.height >= 1
        operators = window.spans("operator").select(operator="id", caller="name")
        assert set(kernels.join(operators, on="operator")["caller"]) == {"aten::mm"}
