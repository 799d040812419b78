"""Two ranks under a trainer, which starts them or is started by a launcher: one run, the same steps on both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.run import Run
from tests.integrations.recorded import step_numbers, times_of

pytestmark = pytest.mark.slow

TRANSFORMERS = """
from stepscope.integrations.transformers import StepscopeCallback
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
samples = [{"input_ids": list(range(8)), "labels": number % 2} for number in range(128)]
arguments = TrainingArguments(
    "out", max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, eval_strategy="steps",
    eval_steps=4, save_steps=4, logging_steps=2, report_to=[], disable_tqdm=True, use_cpu=True,
)
model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes))
ours = StepscopeCallback(steps="2-6", output="runs")
trainer = Trainer(model, arguments, train_dataset=samples, eval_dataset=samples[:8], callbacks=[ours])
trainer.train()
print(f"world {arguments.world_size} steps {trainer.state.global_step}")
"""

LIGHTNING = """
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from stepscope.integrations.lightning import StepscopeCallback

trainer = lightning.Trainer(
    max_steps=8, accelerator="cpu", devices=2, strategy="ddp", limit_train_batches=4, limit_val_batches=1,
    enable_progress_bar=False, callbacks=[StepscopeCallback(steps="2-6", output="runs")],
)
trainer.fit(BoringModel())
print(f"world {trainer.world_size} steps {trainer.global_step}")
"""


@pytest.mark.parametrize(
    ("program", "launcher"),
    [
        pytest.param(TRANSFORMERS, ("-m", "torch.distributed.run", "--nproc-per-node=2"), id="transformers"),
        pytest.param(LIGHTNING, (), id="lightning"),
    ],
)
def test_two_ranks(tmp_path: Path, program: str, launcher: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    command = [sys.executable, *launcher, "train.py"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("world 2 steps 8") == 2
    # One run holds both ranks, the first of which says where it lies
    (path,) = (tmp_path / "runs").iterdir()
    assert done.stderr.count(f"stepscope: recorded in {path}") == 1
    assert "stepscope report --findings" in done.stderr
    run = Run(path)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    for rank in run.ranks:
        assert step_numbers(rank) == [2, 3, 4, 5, 6]
        assert times_of(rank)["evaluation"] == 2
        assert rank.manifest["status"] == "complete"
    # and the gradients of each step met
    assert run.job.results["cluster_communication"].height >= 5


def test_the_launcher_of_accelerate(tmp_path: Path) -> None:
    program = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(8 * 2 * 16, 64), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
print(f"world {accelerator.num_processes} steps {len(loader)}")
"""
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    launched = "accelerate.commands.launch --multi_gpu --num_processes=2 --num_machines=1 --mixed_precision=no"
    ports = "--dynamo_backend=no --main_process_port=0"
    ours = "-m stepscope run --output runs --steps 2:6 train.py"
    command = [sys.executable, "-m", *launched.split(), *ports.split(), *ours.split()]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("world 2 steps 8") == 2
    assert "2 ranks on 1 host" in done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    assert [step_numbers(rank) for rank in Run(path).ranks] == [[2, 3, 4, 5, 6]] * 2
