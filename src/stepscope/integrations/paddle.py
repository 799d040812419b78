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
    from paddle.callbacks import Callback
except ImportError as error:
    raise not_installed(__name__, error) from None


class StepscopeCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records ``fit``: its steps, evaluations and checkpoints.

    A step is what Paddle calls one: a batch, also where gradients of several are accumulated. At the end the findings
    are printed as Paddle prints its progress; with ``verbose=0`` they go to the logger ``stepscope``.

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

    def _say(self, line: str) -> None:
        if self.params.get("verbose"):
            sys.stdout.write(f"{line}\n")
        else:
            logging.getLogger("stepscope").info(line)
