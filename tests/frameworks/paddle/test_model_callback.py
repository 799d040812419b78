"""``Model.fit`` of Paddle with stepscope's callback: evaluations and checkpoints of a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest

from stepscope.integrations.paddle import StepscopeCallback
from tests.integrations.logged import check_steps, in_wandb
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of


class Counts(paddle.callbacks.Callback):
    """Counts as Paddle does, and keeps the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.evaluations = 0
        self.losses: list[float] = []

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.steps += 1
        self.losses.append(float(logs["loss"][0]))

    def on_eval_end(self, logs: Any = None) -> None:
        self.evaluations += 1


def samples(count: int) -> paddle.io.TensorDataset:
    return paddle.io.TensorDataset([paddle.randn([count, 8]), paddle.ones([count, 1])])


def trained(directory: Path, *callbacks: Any, verbose: int = 1) -> Counts:
    """Train two epochs of six batches; two batches are accumulated, and each epoch is evaluated and saved."""
    paddle.seed(1)
    counts = Counts()
    model = paddle.Model(paddle.nn.Linear(8, 1))
    model.prepare(paddle.optimizer.SGD(parameters=model.parameters()), paddle.nn.MSELoss())
    model.fit(
        samples(24),
        samples(8),
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=verbose,
        save_dir=str(directory),
        accumulate_grad_batches=2,
        callbacks=[*callbacks, counts],
    )
    return counts


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.usefixtures("nothing_left_behind")
def test_steps_and_phases_are_those_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = trained(tmp_path / "plain")
    capsys.readouterr()
    ours = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", quiet=True))
    # Then the results are the same
    assert ours.losses == plain.losses
    # And the steps and phases are those that it counts itself
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(ours.steps)) == list(range(12))
    saved = list((tmp_path / "ours").glob("[0-9]*.pdparams"))
    assert times_of(rank) == {"evaluation": ours.evaluations, "checkpoint": len(saved)}
    assert (ours.evaluations, len(saved)) == (2, 2)
    # And it prints the command that shows the findings
    assert f"stepscope report --findings {rank.directory.path.parent}" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_window_is_of_epochs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": "1", "output": tmp_path / "runs", "analyse": "later", "quiet": True}
    trained(tmp_path / "ours", StepscopeCallback(**options), verbose=0)
    assert step_numbers(recorded_in(tmp_path / "runs")) == [6, 7, 8, 9, 10, 11]


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_silent_training_stays_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", analyse="later", quiet=True), verbose=0)
    assert "stepscope" not in "".join(capsys.readouterr())
    assert step_numbers(recorded_in(tmp_path / "runs")) == list(range(12))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ours_first", [True, False])
def test_wandb_gets_the_figures_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours_first: bool) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = paddle.callbacks.WandbCallback(mode="offline", dir=str(tmp_path))
    ours = StepscopeCallback(output=tmp_path / "runs", quiet=True)
    trained(tmp_path / "ours", *([ours, wandb] if ours_first else [wandb, ours]))
    points = in_wandb(tmp_path, "train/step")
    check_steps(points, recorded_in(tmp_path / "runs"), first=1)
    assert points["steps"] == {12: 12}


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("Paddle", tmp_path)
