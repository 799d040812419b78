"""The ``Accelerator`` of accelerate: a loop with accumulation, checkpoints and logging of a tiny random model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from stepscope.integrations.accelerate import StepscopeTracker
from tests.integrations.logged import check_steps, in_mlflow, in_tensorboard, in_wandb, keep_here
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerators of one process share what accelerate keeps of it."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class KeptFigures(GeneralTracker):
    """Keeps what it is given until it is closed, as TensorBoard's does."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []
        self.open = True

    @property
    def tracker(self) -> Any:
        return self.rows

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        assert self.open
        self.rows.append((step, values))

    def finish(self) -> None:
        self.open = False


def trained(directory: Path, *trackers: GeneralTracker | str) -> list[float]:
    """Train two epochs of 12 batches; two batches are a step, and each epoch ends with a checkpoint."""
    set_seed(0)
    kept = {"gradient_accumulation_steps": 2, "project_dir": str(directory), "log_with": list(trackers)}
    accelerator = Accelerator(cpu=True, **kept)
    data = TensorDataset(torch.randn(48, 8), torch.ones(48, 1))
    layer = torch.nn.Linear(8, 1)
    model, optimizer, loader = accelerator.prepare(layer, torch.optim.Adam(layer.parameters()), DataLoader(data, 4))
    accelerator.init_trackers("training")
    losses = []
    for epoch in range(2):
        for samples, targets in loader:
            with accelerator.accumulate(model):
                loss = (model(samples) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.log({"loss": losses[-1]}, step=epoch)
        accelerator.save_state(str(directory / f"{epoch}"))
    accelerator.end_training()
    return losses


def test_steps_and_phases_are_those_of_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    methods = (Accelerator.log, Accelerator.save_state, Accelerator.end_training)
    plain = trained(tmp_path / "plain", KeptFigures())
    kept = KeptFigures()
    with caplog.at_level(logging.WARNING, "accelerate.tracking"):
        losses = trained(tmp_path / "ours", kept, StepscopeTracker(output=tmp_path / "runs", quiet=True))
    # Then the results are the same
    assert losses == plain
    # And the steps and phases are those of the loop
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(12))
    assert times_of(rank) == {"checkpoint": 2, "logging": 2}
    # And its log names the command that shows the findings, and the other tracker has the figures
    assert f"stepscope report --findings {rank.directory.path.parent}" in caplog.text
    assert [step for step, _ in kept.rows] == [0, 1, *range(1, 13), 12]
    assert [figures["stepscope/step/seconds"] > 0 for _, figures in kept.rows[2:-1]] == [True] * 12
    assert kept.rows[-1][1]["stepscope/steps"] == 12
    # And nothing of ours stays in accelerate
    assert (Accelerator.log, Accelerator.save_state, Accelerator.end_training) == methods


@pytest.mark.slow
def test_tensorboard_wandb_and_mlflow_get_the_figures_of_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_here(tmp_path, monkeypatch)
    tracker = StepscopeTracker(output=tmp_path / "runs", quiet=True)
    trained(tmp_path / "ours", "tensorboard", "wandb", "mlflow", tracker)
    rank = recorded_in(tmp_path / "runs")
    for points in (in_tensorboard(tmp_path), in_wandb(tmp_path, "stepscope/steps_ended"), in_mlflow(tmp_path)):
        check_steps(points, rank, first=1)
        assert points["steps"] == {12: 12}


@pytest.mark.slow
def test_a_window_is_of_epochs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": "1", "output": tmp_path / "runs", "analyse": "later", "quiet": True}
    trained(tmp_path / "ours", StepscopeTracker(**options))
    assert step_numbers(recorded_in(tmp_path / "runs")) == [6, 7, 8, 9, 10, 11]


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("accelerate", tmp_path)
