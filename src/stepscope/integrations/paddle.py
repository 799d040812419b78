"""The callback for ``Model.fit`` of Paddle.

::

    from stepscope.integrations.paddle import StepscopeCallback

    model.fit(data, epochs=2, callbacks=[StepscopeCallback()])
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    from paddle.callbacks import Callback, WandbCallback
    from paddle.hapi.callbacks import CallbackList
except ImportError as error:
    raise not_installed(__name__, error) from None


#: The axis on which W&B shows the figures of a training: batches that have ended, as Paddle counts them.
_COUNT = "train/step"


class StepscopeCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records ``fit``: its steps, evaluations and checkpoints.

    A step is what Paddle calls one: a batch, also where gradients of several are accumulated. At the end the findings
    are printed as Paddle prints its progress; with ``verbose=0`` they go to the logger ``stepscope``. Figures go to
    Paddle's callback for W&B: those of each recorded step at the number of batches that have ended with it.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        super().__init__()
        self._recording = TrainerRecording(options)
        self._epoch = 0

    # Checkpoints are calls of `Model.save`, which stepscope knows by itself.
    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.begin()
        self._recording.around(CallbackList, "on_end", self._before_the_end)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._epoch = epoch
        self._recording.epoch(epoch)

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        steps = self.params.get("steps")
        self._recording.step(self._epoch + (steps is not None and step + 1 >= steps))

    def on_eval_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase("evaluation")

    def on_eval_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase(None)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.end(self._say)

    def _before_the_end(self, original: Any, callbacks: Any, mode: str, logs: Any = None) -> None:  # noqa: ANN401
        """End the recording while the run of W&B is open: ``on_train_end`` closes it, and may come to it first."""
        if mode == "train" and self in callbacks.callbacks:
            runs = [one.run for one in callbacks if isinstance(one, WandbCallback) and one.run is not None]
            steps = self._recording.profile.step_number
            for run in runs:
                run.define_metric("stepscope/*", step_metric=_COUNT)

            def log(figures: dict[str, float], number: int | None) -> None:
                for run in runs:
                    run.log({**figures, _COUNT: steps if number is None else number + 1})

            self._recording.end(self._say, log if runs else None)
        original(callbacks, mode, logs)

    def _say(self, line: str) -> None:
        if self.params.get("verbose"):
            sys.stdout.write(f"{line}\n")
        else:
            logging.getLogger("stepscope").info(line)
