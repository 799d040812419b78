"""What the facts say of models, optimizers and switches, against programs that know it."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import stepscope
from tests.frameworks.torch.programs import forked

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
    done = forked("-m", "stepscope", "run", "--steps", "24-25", "--output", folder / "runs", script)
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
    assert forked(tmp_path / "train.py").stdout == said


def test_a_profile_knows_models_that_were_there_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROFILE)
    done = forked(script, tmp_path / "runs")
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


SETTINGS = """
import os, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def doubled(loss):
    return 2 * loss

torch.set_float32_matmul_precision("medium")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
compiled = torch.compile(doubled, backend="eager", dynamic=False)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 4))
parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2, find_unused_parameters=True)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
data = TensorDataset(torch.ones(160, 256))
loader = DataLoader(data, batch_size=4, num_workers=1, prefetch_factor=3, pin_memory=True)
batches = iter(loader)
with open("log", "wb", buffering=0) as log:
    for number in range(30):
        while batches._data_queue.qsize() < 3:
            time.sleep(0.001)
        (inputs,) = next(batches)
        parallel(inputs).square().mean().backward()
        log.write(bytes(1 << 20))
        os.fsync(log.fileno())
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_precision_compiled_functions_buckets_and_the_loaders_queue(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SETTINGS)
    done = forked("-m", "stepscope", "run", "--steps", "24-25", "--output", tmp_path / "runs", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = facts_of(tmp_path / "runs")
    state = facts["torch.state"]
    assert state["matmul_precision"] == "medium"
    line = SETTINGS.splitlines().index("def doubled(loss):") + 1
    place = {"function": "doubled", "file": str(script), "line": line}
    assert state["compile"] == [{"of": "function", **place, "backend": "eager", "dynamic": False}]
    parallel = state["models"][0]["ddp"]
    assert (parallel["bucket_cap_bytes"], parallel["find_unused_parameters"]) == (2 << 20, True)
    assert (parallel["broadcast_buffers"], parallel["static_graph"]) == (True, False)
    assert parallel["bucket_sizes"] == [4 * (256 * 256 + 256 + 256 * 4 + 4)]
    loader = facts["dataloader.0"]
    assert (loader["workers"], loader["prefetch_factor"]) == (1, 3)
    assert loader["pin_memory"] is torch.cuda.is_available()  # asked for; without a device there is nothing to pin for
    # The program waited until three batches stood ready, and wrote 1 MiB a step
    run = stepscope.open(tmp_path / "runs")
    steps = run.tables["run_steps"].collect()
    assert set(steps["batches_ready"][5:]) == {3}
    assert int(steps["written"].median()) in (0, *range(1 << 20, 1 << 22))  # 0: a file system without a disk
    # Making a batch takes less than writing so much: one worker would do
    [made] = run.result("batch_production").rows(named=True)
    assert (made["Dataset"], made["Processes"], made["Workers Needed"]) == ("TensorDataset", 1, 1)
    assert made["Batches"] >= 30


def trained_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    model[0].register_forward_hook(lambda *_: None)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_model_that_the_program_deletes_is_freed(tmp_path: Path) -> None:
    gc.collect()  # what other tests left
    model, optimizer = trained_model()
    with stepscope.profile(output=tmp_path, analyse="later", quiet=True) as profile:
        # The state that was read when the window opened has them
        profile.step()
        references = [weakref.ref(one) for one in (model, model[1], model[1].weight, optimizer)]
        del model, optimizer
        gc.collect()
        assert [one() for one in references] == [None] * 4
        model, optimizer = trained_model()  # one that is made while it records
        profile.step()
        references = [weakref.ref(one) for one in (model, model[1], model[1].weight, optimizer)]
    del model, optimizer
    gc.collect()
    assert [one() for one in references] == [None] * 4
    (run,) = tmp_path.iterdir()
    state = facts_of(run)["torch.state"]
    assert [one["class"] for one in state["optimizers"]] == ["AdamW"]
    assert state["models"][0]["parameters"] == 4
