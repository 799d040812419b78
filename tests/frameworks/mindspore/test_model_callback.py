"""``Model.fit`` of MindSpore with stepscope's callback: evaluations and checkpoints of a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

from stepscope.integrations.mindspore import StepscopeCallback
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of


class Counts(Callback):
    """Counts as MindSpore does, keeps the losses, and may fail."""

    def __init__(self, fails_at: int = -1) -> None:
        self.steps = self.evaluations = 0
        self.losses: list[float] = []
        self.fails_at = fails_at

    def on_train_step_end(self, run_context: Any) -> None:
        found = run_context.original_args()
        self.steps = found.cur_step_num
        self.losses.append(float(found.net_outputs.asnumpy()))
        if self.steps == self.fails_at:
            message = "boom"
            raise ValueError(message)

    def on_eval_end(self, run_context: Any) -> None:
        self.evaluations += 1


def batches(count: int) -> NumpySlicesDataset:
    random = np.random.default_rng(1)
    columns = (random.standard_normal((count, 8), "f4"), np.ones((count, 1), "f4"))
    return NumpySlicesDataset(columns, shuffle=False).batch(4)


def trained(directory: Path, *callbacks: Callback, counts: Counts | None = None) -> Counts:
    """Train two epochs of six steps, with an evaluation after each and a checkpoint every four steps."""
    mindspore.set_seed(1)
    counts = counts or Counts()
    net = nn.Dense(8, 1)
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params()), metrics={"mse"})
    saves = ModelCheckpoint("net", str(directory), CheckpointConfig(save_checkpoint_steps=4))
    model.fit(2, batches(24), batches(8), callbacks=[*callbacks, saves, counts])
    return counts


@pytest.mark.usefixtures("nothing_left_behind")
def test_steps_and_phases_are_those_of_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = trained(tmp_path / "plain")
    ours = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", quiet=True))
    # Then the results are the same
    assert ours.losses == plain.losses
    # And the steps and phases are those that it counts itself
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(ours.steps)) == list(range(12))
    saved = list((tmp_path / "ours").glob("*.ckpt"))
    assert times_of(rank) == {"evaluation": ours.evaluations, "checkpoint": len(saved)}
    assert (ours.evaluations, len(saved)) == (2, 3)
    # And its log names the command that shows the findings
    assert f"stepscope report --findings {rank.directory.path.parent}" in caplog.text


def test_a_window_is_of_epochs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": "1", "output": tmp_path / "runs", "analyse": "later", "quiet": True}
    trained(tmp_path / "ours", StepscopeCallback(**options))
    assert step_numbers(recorded_in(tmp_path / "runs")) == [6, 7, 8, 9, 10, 11]


@pytest.mark.usefixtures("nothing_left_behind")
def test_a_training_that_fails_leaves_its_steps_and_its_error(tmp_path: Path) -> None:
    callback = StepscopeCallback(output=tmp_path / "runs", analyse="later", quiet=True)
    with pytest.raises(ValueError, match="boom"):
        trained(tmp_path / "ours", callback, counts=Counts(fails_at=5))
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank)[:5] == [0, 1, 2, 3, 4]
    assert (rank.manifest["status"], rank.manifest["exception"]) == ("failed at step 5", "ValueError")


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("MindSpore", tmp_path)
