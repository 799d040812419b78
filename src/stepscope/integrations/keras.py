"""The callback for ``Model.fit`` of Keras 3, tested on PyTorch and JAX.

::

    from stepscope.integrations.keras import StepscopeCallback

    model.fit(x, y, epochs=2, callbacks=[StepscopeCallback()])
"""

from __future__ import annotations

import sys
from typing import Any

from stepscope.collect.annotations import close_range, open_range
from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    import keras
    from absl import logging
except ImportError as error:
    raise not_installed(__name__, error) from None


class StepscopeCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Records ``fit``: its steps, validations and checkpoints.

    A step is what Keras calls a batch: one execution of the train function, of which ``steps_per_execution`` joins
    several. At the end the findings are printed as Keras prints its progress.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        super().__init__()
        self._recording = TrainerRecording(options)
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.begin()
        for function in ("save", "save_weights"):
            self._recording.named(keras.Model, function, "checkpoint")
        # A range in a function that torch.compile compiles would break its graph.
        if keras.backend.backend() == "torch" and not self.model.jit_compile:
            self._recording.around(keras.optimizers.Optimizer, "apply", _in_range)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._epoch = epoch
        self._recording.epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        steps = self.params.get("steps")
        self._recording.step(self._epoch + (steps is not None and batch + 1 >= steps))

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase("evaluation")

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase(None)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.end(_say)


def _in_range(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of `apply`
    """Update the variables in the range that PyTorch gives to steps of its own optimizers."""
    opened = open_range(f"Optimizer.step#{type(optimizer).__name__}.step", {})
    try:
        return original(optimizer, *args, **kwargs)
    finally:
        close_range(opened)


def _say(line: str) -> None:
    if keras.config.is_interactive_logging_enabled():
        sys.stdout.write(f"{line}\n")
    else:
        logging.info(line)
