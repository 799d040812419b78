"""The tracker for the ``Accelerator`` of accelerate.

::

    from stepscope.integrations.accelerate import StepscopeTracker

    accelerator = Accelerator(log_with=StepscopeTracker())
    accelerator.init_trackers("training")
    ...
    accelerator.end_training()
"""

from __future__ import annotations

from typing import Any

from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    from accelerate import Accelerator
    from accelerate.logging import get_logger
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise not_installed(__name__, error) from None


#: The axis of our figures in W&B: steps that have ended.
_COUNT = "stepscope/steps_ended"


class StepscopeTracker(GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Records from ``init_trackers`` to ``end_training``: steps, checkpoints and logging.

    A step ends with a step of the first optimizer that was prepared and stepped: with accumulation, when the gradients
    are synchronized. An epoch ends with the last batch of a prepared loader. At the end the findings go to the log of
    ``accelerate.tracking``, as warnings, and figures to the other trackers: those of each recorded step at the number
    of steps that have ended with it.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    name = "stepscope"
    requires_logging_directory = False
    main_process_only = False  # every rank records itself

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        super().__init__()
        self._recording = TrainerRecording(options)
        self._optimizer: Any = None
        self._epoch = 0

    @property
    def tracker(self) -> Any:  # noqa: ANN401 - as accelerate declares it
        """The :class:`stepscope.profile` that records."""
        return self._recording.profile

    def start(self) -> None:  # noqa: D102
        self._optimizer, self._epoch = None, 0
        self._recording.begin()
        for function in ("save", "save_model", "save_state"):
            self._recording.named(Accelerator, function, "checkpoint")
        self._recording.named(Accelerator, "log", "logging")
        self._recording.around(AcceleratedOptimizer, "step", self._stepped)
        self._recording.around(Accelerator, "end_training", self._before_the_end)

    def finish(self) -> None:  # noqa: D102
        self._recording.end(self._say)

    def _say(self, line: str) -> None:
        get_logger("accelerate.tracking").warning(line)

    def _stepped(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = original(optimizer, *args, **kwargs)
        if optimizer.gradient_state.sync_gradients:
            self._optimizer = self._optimizer or optimizer
            if optimizer is self._optimizer:
                self._epoch += optimizer.gradient_state.end_of_dataloader
                self._recording.step(self._epoch)
        return result

    def _before_the_end(self, original: Any, accelerator: Any) -> Any:  # noqa: ANN401
        """End the recording while the other trackers are open."""
        steps = self._recording.profile.step_number
        trackers = [one for one in accelerator.trackers if one is not self]
        undefined = [one for one in trackers if one.name == "wandb"]

        def log(figures: dict[str, float], number: int | None) -> None:
            step = steps if number is None else number + 1
            while undefined:
                undefined.pop().tracker.define_metric("stepscope/*", step_metric=_COUNT)
            for tracker in trackers:
                if tracker.name == "wandb":  # it drops what comes later than its own counter of steps
                    tracker.log({**figures, _COUNT: step})
                else:
                    tracker.log(figures, step=step)

        self._recording.end(self._say, log if trackers else None)
        return original(accelerator)
