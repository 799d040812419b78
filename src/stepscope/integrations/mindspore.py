"""The callback for ``Model.train`` and ``Model.fit`` of MindSpore.

::

    from stepscope.integrations.mindspore import StepscopeCallback

    model.train(2, data, callbacks=[StepscopeCallback()])
"""

from __future__ import annotations

from typing import Any

from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    from mindspore import log
    from mindspore.train import Callback
except ImportError as error:
    raise not_installed(__name__, error) from None


class StepscopeCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records ``train`` or ``fit``: its steps, evaluations and checkpoints.

    A step is what MindSpore calls one, ``cur_step_num``; where the dataset sinks to the device, a step of the callback
    is as many of them as sink at once. At the end the findings go to MindSpore's log, as warnings.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        self._recording = TrainerRecording(options)

    # Evaluations and checkpoints are functions of MindSpore's that stepscope knows by itself.
    def on_train_begin(self, run_context: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.begin()

    def on_train_step_end(self, run_context: Any) -> None:  # noqa: ANN401, D102
        now = run_context.original_args()
        size = now.get("batch_num") or 0
        self._recording.step(now.cur_epoch_num - 1 + bool(size and now.cur_step_num % size == 0))

    def on_train_end(self, run_context: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.end(log.warning)

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:  # noqa: ANN401
        """Close the recording of a training that an error has ended; evaluations in ``fit`` end here, too."""
        if error is not None:
            self._recording.end(error=error)
