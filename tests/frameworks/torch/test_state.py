"""What the facts say of models, optimizers and switches, against programs that know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from tests.frameworks.torch.programs import python

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.words = nn.Embedding(100, 8, sparse=True)
        self.old = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double()
        self.last = nn.Linear(8, 4)

    def forward(self, images):
        hidden = self.norm(self.conv(images)).mean((2, 3))
        if hidden.requires_grad:
            hidden.register_hook(clip)
        return self.last(hidden)

def clip(gradient):
    return gradient.clamp(-1, 1)

def watch(module, inputs, result):
    pass

torch.manual_seed(0)
model = Net().to(memory_format=torch.channels_last)
model.old.requires_grad_(False)
model.norm.eval()
model.conv.register_forward_hook(watch)
model.last.register_forward_hook(watch)
known = [one for name, one in model.named_parameters() if "words" not in name and "old" not in name]
optimizer = torch.optim.AdamW([{"params": known[:2]}, {"params": known[2:], "lr": 0.1}], foreach=True)
twin = torch.optim.SGD(known, lr=0.0)

def step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(4, 3, 8, 8)).float().square().mean()
    with torch.autograd.set_detect_anomaly(False):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""
RUN = (
    MODEL
    + """
torch.set_flush_denormal(True)
for _ in range(40):  # an optimizer that never steps is waited for during 20 steps
    last = step()
print(last.item())
"""
)
PROFILE = (
    MODEL
    + """
import sys, stepscope
with stepscope.profile(output=sys.argv[1], schedule=stepscope.schedule(wait=2, warmup=1, active=2, repeat=1)) as prof:
    for _ in range(8):
        step()
        prof.step()
"""
)


def line_of(text: str) -> int:
    return RUN.splitlines().index(text) + 1


def facts_of(folder: Path) -> dict[str, Any]:
    rows = stepscope.open(folder).tables["metadata"].collect().iter_rows()
    return {key: json.loads(value) for key, value in rows}


def trained(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    done = python("-m", "stepscope", "run", "--steps", "24-25", "--output", folder / "runs", script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_the_model(model: dict[str, Any], file: str) -> None:
    parameters = 3 * 8 * 9 + 8 + 16 + 800 + 36
    assert (model["class"], model["modules"], model["training"]) == ("Net", 8, True)
    assert model["bytes_by_dtype"] == {"float32": 4 * parameters, "float64": 8 * 2 * 72}
    assert model["trainable_bytes"] == 4 * parameters
    assert model["eval_modules"] == ["Net.norm"]
    assert model["frozen_modules"] == ["Net.old.0", "Net.old.1"]
    assert (model["conv"], model["conv_channels_last"], model["batchnorm"]) == (1, 1, 1)
    assert model["embeddings"] == [{"name": "Net.words", "shape": [100, 8], "sparse": True, "bytes": 3200}]
    place = {"function": "watch", "file": file, "line": line_of("def watch(module, inputs, result):")}
    assert model["hooks"] == [{"on": "module", "kind": "forward", **place, "count": 2, "first": "Net.conv"}]


def test_a_run_knows_what_the_program_has_set(tmp_path: Path) -> None:
    said = trained(tmp_path, RUN)
    facts, file = facts_of(tmp_path / "runs"), str(tmp_path / "train.py")
    state, used = facts["torch.state"], facts["torch.used"]
    check_the_model(state["models"][0], file)
    # The optimizers, with what torch makes of their switches
    first, second = state["optimizers"]
    assert (first["class"], first["groups"], first["parameters"], first["foreach"]) == ("AdamW", 2, 6, True)
    assert first["implementation"] == "foreach"
    assert first["state_bytes"] == 2 * first["parameter_bytes"] + 6 * 4
    assert (second["class"], second["implementation"], second["state_bytes"]) == ("SGD", "for-loop", 0)
    # The switches, and what steps alone use
    assert (state["flush_denormal"], state["threads"], state["grad"], state["anomaly"]) == (True, 1, True, False)
    assert used["autocast"] == [{"device": "cpu", "dtype": "bfloat16", "enabled": True, "entered": 2}]
    assert used["anomaly_entered"] == 2
    clip = {"function": "clip", "file": file, "line": line_of("def clip(gradient):"), "registered": 2}
    assert used["tensor_hooks"] == [clip]
    # The training is the same without us
    assert python(tmp_path / "train.py").stdout == said


def test_a_profile_knows_models_that_were_there_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROFILE)
    done = python(script, tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    state = facts_of(tmp_path / "runs")["torch.state"]
    check_the_model(state["models"][0], str(script))
    assert {one["class"] for one in state["optimizers"]} == {"AdamW", "SGD"}


HOSTILE = (
    MODEL
    + """
class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.__dict__["_parameters"] = 3
        self.__dict__["_forward_hooks"] = {1: object()}

class Odd(torch.optim.SGD):
    broken = False
    @property
    def param_groups(self):
        if Odd.broken:
            raise RuntimeError("not now")
        return self.groups
    @param_groups.setter
    def param_groups(self, groups):
        self.groups = groups

broken, odd = Broken(), Odd(known, lr=0.1)
Odd.broken = True
model.broken = broken
for _ in range(40):  # an optimizer that never steps is waited for during 20 steps
    step()
print("trained")
"""
)


@pytest.mark.slow
def test_what_cannot_be_read_costs_only_itself_and_is_told(tmp_path: Path) -> None:
    assert trained(tmp_path, HOSTILE) == "trained\n"
    run = stepscope.open(tmp_path / "runs")
    state = facts_of(tmp_path / "runs")["torch.state"]
    assert state["unread"] == ["optimizers"]
    assert state["models"][0]["modules_unread"] == 1
    assert state["models"][0]["frozen_modules"] == ["Net.old.0", "Net.old.1"]
    assert run.manifest["collectors"]["torch_state"]["unread"] == ["optimizers"]
    assert "autocast" in facts_of(tmp_path / "runs")["torch.used"]
