"""The ``Trainer`` of transformers: accumulation, evaluation, checkpoints and logging of a tiny random model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from stepscope.integrations.transformers import StepscopeCallback
from stepscope.run import Run
from tests.integrations.logged import check_memory, check_steps, in_mlflow, in_tensorboard, in_wandb, keep_here
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of

pytestmark = pytest.mark.filterwarnings("ignore")


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 50, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": torch.tensor(number % 2)} for number, row in enumerate(words)]


def trained(directory: Path, *callbacks: Any, **changes: Any) -> Trainer:
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    arguments = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 4,
        "logging_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    trainer = Trainer(
        BertForSequenceClassification(BertConfig(vocab_size=50, **sizes)),
        TrainingArguments(str(directory), **arguments),
        train_dataset=samples(48),
        eval_dataset=samples(8),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def history(trainer: Trainer) -> list[dict[str, float]]:
    timed = ("runtime", "per_second")
    return [
        {name: value for name, value in row.items() if not any(word in name for word in timed)}
        for row in trainer.state.log_history
    ]


def test_steps_and_phases_are_those_of_the_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given the same training without and with the callback
    plain = trained(tmp_path / "plain")
    caplog.set_level(logging.WARNING, "transformers.trainer")
    logging.getLogger("transformers").propagate = True
    trainer = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", quiet=True))
    # Then its results are the same
    assert history(trainer) == history(plain)
    # And the steps and phases are those that it counts itself
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(trainer.state.global_step))
    rows = trainer.state.log_history
    assert times_of(rank) == {
        "evaluation": sum("eval_loss" in row for row in rows),
        "logging": sum("loss" in row for row in rows),
        "checkpoint": len(list((tmp_path / "ours").glob("checkpoint-*"))),
    }
    # And its log names the command that shows the findings
    assert f"stepscope report --findings {rank.directory.path.parent}" in caplog.text


@pytest.mark.slow
def test_what_happens_once_an_epoch_is_told_once(tmp_path: Path) -> None:
    every = dict.fromkeys(("eval_strategy", "save_strategy", "logging_strategy"), "epoch")
    trainer = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", analyse="later"), **every)
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(trainer.state.global_step))
    assert times_of(rank) == {"evaluation": 2, "logging": 2, "checkpoint": 2}


@pytest.mark.slow
def test_tensorboard_wandb_and_mlflow_get_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    keep_here(tmp_path, monkeypatch)
    said = Heard()
    callback = StepscopeCallback(output=tmp_path / "runs", quiet=True, profile_memory=True)
    trainer = trained(tmp_path / "ours", callback, said, report_to=["tensorboard", "wandb", "mlflow"])
    wandb.finish()
    rank, last = recorded_in(tmp_path / "runs"), trainer.state.global_step
    # Then each logger has the figures of each step at the trainer's number of it
    for points in (in_tensorboard(tmp_path / "ours"), in_wandb(tmp_path, "train/global_step"), in_mlflow(tmp_path)):
        check_steps(points, rank, first=1)
        check_memory(points, rank)
        # And those of the training at its last step
        assert points["steps"] == {last: last}
        assert points["step_seconds"] == pytest.approx({last: rank.summary.steps.p50_ns / 1e9})
        parts = {f"step_part_seconds/{part.name}": part.mean_ns / 1e9 for part in rank.summary.split}
        assert {name: points[name][last] for name in parts} == pytest.approx(parts)
    # And what the trainer keeps itself, and tells callbacks, is as without stepscope
    assert not any("stepscope" in key for row in (*trainer.state.log_history, *said.rows) for key in row)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "steps"), [({"steps": "2-4"}, [2, 3, 4]), ({"epochs": "1"}, [6, 7, 8, 9, 10, 11])])
def test_a_window_is_of_steps_or_epochs(tmp_path: Path, options: dict[str, str], steps: list[int]) -> None:
    callback = StepscopeCallback(output=tmp_path / "runs", analyse="later", quiet=True, **options)
    trained(tmp_path / "ours", callback)
    assert step_numbers(recorded_in(tmp_path / "runs")) == steps


@pytest.mark.slow
def test_an_output_that_cannot_be_written_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "file" / "runs"), max_steps=2)
    assert trainer.state.global_step == 2


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_the_next_training_after_an_error_is_recorded(tmp_path: Path, same: bool) -> None:
    callbacks = [StepscopeCallback(output=tmp_path / "runs", analyse="later", quiet=True) for _ in range(2)]
    with pytest.raises(ValueError, match="boom"):
        trained(tmp_path / "broken", callbacks[0], Fails())
    trainer = trained(tmp_path / "ours", callbacks[0 if same else 1], max_steps=3)
    last = max((tmp_path / "runs").glob("*"), key=lambda path: path.stat().st_mtime_ns)
    assert step_numbers(Run(last).ranks[0]) == list(range(trainer.state.global_step))


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("transformers", tmp_path)


class Heard(TrainerCallback):
    """Keeps what it is told of logs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.rows.append(dict(logs))


class Fails(TrainerCallback):
    """Ends a training by an error."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            message = "boom"
            raise ValueError(message)
