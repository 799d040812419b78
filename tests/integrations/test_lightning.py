"""The ``Trainer`` of Lightning: accumulation, validation, checkpoints and logging of a tiny random model."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import lightning as pl
import polars
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader, TensorDataset

from stepscope.integrations.lightning import StepscopeCallback, StepscopeProfiler
from tests.integrations.logged import check_steps, in_mlflow, in_tensorboard, in_wandb, keep_here
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of

pytestmark = pytest.mark.filterwarnings("ignore")


class Regression(pl.LightningModule):
    """A linear model that keeps its losses and counts its validations."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.losses: list[float] = []
        self.validations = 0
        self.fails_at = fails_at

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if number == self.fails_at:
            message = "boom"
            raise ValueError(message)
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        with self.trainer.profiler.profile("validation_loss"):
            self.log("val_loss", (self.layer(batch[0]) - batch[1]).square().mean())

    def on_validation_end(self) -> None:
        self.validations += not self.trainer.sanity_checking

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class CountedSaves(ModelCheckpoint):
    """Counts its checkpoints."""

    saved = 0

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        self.saved += 1
        super()._save_checkpoint(trainer, filepath)


def batches(count: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(count, 8, generator=generator), torch.ones(count, 1)), batch_size=4)


def trained(
    directory: Path,
    *callbacks: Any,
    model: Regression | None = None,
    profiler: StepscopeProfiler | None = None,
    loggers: Any = None,
) -> tuple[pl.Trainer, Regression]:
    pl.seed_everything(0)
    model = model or Regression()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        val_check_interval=6,
        log_every_n_steps=2,
        logger=loggers or CSVLogger(directory),
        callbacks=list(callbacks),
        profiler=profiler,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, batches(48), batches(8))
    return trainer, model


def ways(directory: Path, **more: Any) -> dict[str, tuple[list[Any], StepscopeProfiler | None]]:
    """Return the two ways to record, as callbacks and profiler of a trainer."""
    options: dict[str, Any] = {"output": directory, "quiet": True, **more}
    return {"callback": ([StepscopeCallback(**options)], None), "profiler": ([], StepscopeProfiler(**options))}


@pytest.mark.parametrize("way", ["callback", "profiler"])
def test_steps_and_phases_are_those_of_the_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str) -> None:
    # Given the same training without and with stepscope
    _, plain = trained(tmp_path / "plain", CountedSaves(every_n_train_steps=3, save_top_k=-1))
    saves = CountedSaves(every_n_train_steps=3, save_top_k=-1)
    save_checkpoint, log_metrics = pl.Trainer.save_checkpoint, CSVLogger.log_metrics
    logging.getLogger("lightning.pytorch").propagate = True
    callbacks, profiler = ways(tmp_path / "runs")[way]
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        trainer, model = trained(tmp_path / "ours", *callbacks, saves, profiler=profiler)
    # Then its results are the same
    assert model.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    # And the steps and phases are those that it counts itself
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(trainer.global_step))
    found = times_of(rank)
    assert (found["evaluation"], found["checkpoint"]) == (model.validations, saves.saved)
    assert model.validations == saves.saved == 4
    # And its logger has what it logged itself, also in evaluations, and the figures of the steps at the end
    (file,) = (tmp_path / "ours").rglob("metrics.csv")
    rows = list(csv.DictReader(file.open()))
    assert found["logging"] == len([row for row in rows if row["loss"]])
    assert [row["step"] for row in rows if row["stepscope/steps"]] == [str(trainer.global_step)]
    assert float(rows[-1]["stepscope/step_seconds"]) > 0
    # And the figures of each step, beside what the step itself logged
    points = {
        name.removeprefix("stepscope/"): {int(row["step"]): float(row[name]) for row in rows if row[name]}
        for name in rows[0]
        if name.startswith("stepscope/step/")
    }
    check_steps(points, rank, first=0)
    assert {row["step"] for row in rows if row["loss"]} <= {
        row["step"] for row in rows if row["stepscope/step/seconds"]
    }
    # And nothing of ours stays in Lightning, whose log names the command that shows the findings
    assert (pl.Trainer.save_checkpoint, CSVLogger.log_metrics) == (save_checkpoint, log_metrics)
    assert f"stepscope report --findings {rank.directory.path.parent}" in caplog.text


@pytest.mark.slow
def test_the_actions_of_lightning_and_of_the_program_are_ranges(tmp_path: Path) -> None:
    profiler = StepscopeProfiler(output=tmp_path / "runs", analyse="later", quiet=True)
    _, model = trained(tmp_path / "ours", profiler=profiler)
    names = (
        recorded_in(tmp_path / "runs")
        .tables["spans"]
        .filter(polars.col("kind") == "annotation")
        .collect()["name"]
        .to_list()
    )
    assert names.count("run_training_batch") == len(model.losses)
    assert names.count("validation_loss") == 2 * model.validations
    assert not any(".on_" in name for name in names)


@pytest.mark.slow
def test_tensorboard_wandb_and_mlflow_get_the_figures_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_here(tmp_path, monkeypatch)
    loggers = [
        WandbLogger(save_dir=tmp_path, offline=True),
        MLFlowLogger(tracking_uri=f"file:{tmp_path}/mlruns"),
        TensorBoardLogger(tmp_path / "events"),
    ]
    callback = StepscopeCallback(output=tmp_path / "runs", quiet=True)
    trained(tmp_path / "ours", callback, loggers=loggers)
    loggers[0].experiment.finish()
    rank = recorded_in(tmp_path / "runs")
    for points in (in_tensorboard(tmp_path), in_wandb(tmp_path, "trainer/global_step"), in_mlflow(tmp_path)):
        check_steps(points, rank, first=0)
        assert points["steps"] == {12: 12}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["callback", "profiler"])
def test_a_window_is_of_epochs(tmp_path: Path, way: str) -> None:
    callbacks, profiler = ways(tmp_path / "runs", epochs="1", analyse="later")[way]
    trained(tmp_path / "ours", *callbacks, profiler=profiler)
    assert step_numbers(recorded_in(tmp_path / "runs")) == [6, 7, 8, 9, 10, 11]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["callback", "profiler"])
def test_a_training_that_fails_leaves_its_steps_and_its_error(tmp_path: Path, way: str) -> None:
    callbacks, profiler = ways(tmp_path / "runs")[way]
    with pytest.raises(ValueError, match="boom"):
        trained(tmp_path / "ours", *callbacks, model=Regression(fails_at=5), profiler=profiler)
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == [0, 1]
    assert (rank.manifest["status"], rank.manifest["exception"]) == ("failed at step 2", "ValueError")


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("Lightning", tmp_path)
