"""The callback for the ``Trainer`` of transformers.

::

    from stepscope.integrations.transformers import StepscopeCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[StepscopeCallback()])
    trainer.train()
"""

from __future__ import annotations

import copy
from typing import Any

from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    from transformers import TrainerCallback
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_callback import CallbackHandler
    from transformers.utils import logging
except ImportError as error:
    raise not_installed(__name__, error) from None


class StepscopeCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records a training of ``Trainer``: its steps, evaluations, checkpoints and logging.

    A step is one of the optimizer (``TrainerState.global_step``), from the end of the one before. At the end the
    findings go to the log of ``transformers.trainer``, as warnings, and figures to what ``report_to`` names: those of
    each recorded step at its ``global_step``.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        self._recording = TrainerRecording(options)
        self._logged = self._before = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._logged = self._before = state.global_step
        self._recording.begin(int(state.epoch or 0))
        self._recording.around(CallbackHandler, "on_train_end", self._before_the_end)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.step(int(state.epoch or 0))  # after the last step of an epoch it is the number of the next one
        self._next(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._next(state, control)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        if self._recording.doing == "logging":  # else it is a part of an evaluation, or of the program
            self._logged = state.global_step
            self._next(state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._next(state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase(None)

    def _before_the_end(self, original: Any, handler: Any, args: Any, state: Any, control: Any) -> Any:  # noqa: ANN401
        """End the recording while the loggers are open: ``on_train_end`` closes them, and comes to them first."""
        if self in handler.callbacks:
            kinds = tuple(INTEGRATION_TO_CALLBACK.values())
            loggers: list[Any] = [one for one in handler.callbacks if isinstance(one, kinds)]

            def log(figures: dict[str, float], number: int | None) -> None:
                at = copy.copy(state)
                at.global_step = state.global_step if number is None else self._before + number + 1
                for logger in loggers:
                    logger.on_log(args, at, control, logs=dict(figures), model=handler.model)

            self._recording.end(logging.get_logger("transformers.trainer").warning, log if loggers else None)
        return original(handler, args, state, control)

    def _next(self, state: Any, control: Any) -> None:  # noqa: ANN401
        """Say what the trainer does next, in its order: it logs, evaluates, saves, or trains."""
        if control.should_log and self._logged < state.global_step:
            self._recording.phase("logging")
        elif control.should_evaluate:
            self._recording.phase("evaluation")
        else:
            self._recording.phase("checkpoint" if control.should_save else None)
