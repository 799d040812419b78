"""``fit`` of Keras 3 on PyTorch and JAX: validation and checkpoints of a tiny random model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stepscope.integrations.keras import StepscopeCallback
from tests.integrations.recorded import check_program_of_the_page, recorded_in, step_numbers, times_of

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(directory: Path, *callbacks: Any) -> keras.callbacks.History:
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(1).standard_normal((32, 8)).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    saves = keras.callbacks.ModelCheckpoint(str(directory / "model-{epoch}.keras"))
    target, held_out = data[:, :1], (data[:8], data[:8, :1])
    return model.fit(
        data, target, batch_size=4, epochs=3, validation_data=held_out, callbacks=[saves, *callbacks], verbose=0
    )


def test_steps_and_phases_are_those_of_the_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given the same training without and with the callback
    plain = trained(tmp_path / "plain")
    save, apply = keras.Model.save, keras.optimizers.Optimizer.apply
    ours = trained(tmp_path / "ours", StepscopeCallback(output=tmp_path / "runs", quiet=True))
    # Then its results are the same
    assert ours.history == plain.history
    # And the steps and phases are those that it counts itself
    rank = recorded_in(tmp_path / "runs")
    assert step_numbers(rank) == list(range(ours.params["steps"] * ours.params["epochs"]))
    found = times_of(rank)
    assert (found["evaluation"], found["checkpoint"]) == (3, len(list((tmp_path / "ours").glob("*.keras")))) == (3, 3)
    # And PyTorch, which knows its own optimizers only, is told of the optimizer of Keras
    phases = {part.name: part.mean_ns for part in rank.summary.phases}
    assert phases["optimizer"] > 0
    # And nothing of ours stays in Keras, which prints the command that shows the findings
    assert (keras.Model.save, keras.optimizers.Optimizer.apply) == (save, apply)
    assert f"stepscope report --findings {rank.directory.path.parent}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_window_is_of_epochs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": "1", "output": tmp_path / "runs", "analyse": "later", "quiet": True}
    trained(tmp_path / "ours", StepscopeCallback(**options))
    assert step_numbers(recorded_in(tmp_path / "runs")) == list(range(8, 16))


def test_it_is_the_same_on_jax() -> None:
    name = f"{__file__}::{test_steps_and_phases_are_those_of_the_trainer.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "--size=full", "-p", "no:cacheprovider", name]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    check_program_of_the_page("Keras", tmp_path)
