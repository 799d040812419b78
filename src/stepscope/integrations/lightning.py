"""The callback and the profiler for the ``Trainer`` of Lightning 2.

::

    from stepscope.integrations.lightning import StepscopeCallback

    trainer = Trainer(max_epochs=1, callbacks=[StepscopeCallback()])
    trainer.fit(model, data)

``Trainer(profiler=StepscopeProfiler())`` records the same, and Lightning's own actions as ranges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from stepscope.collect.annotations import close_range, open_range
from stepscope.integrations.trainer_recording import TrainerRecording, not_installed

try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.profilers import Profiler
    from lightning.pytorch.utilities import rank_zero_info
except ImportError as error:
    raise not_installed(__name__, error) from None


class _FitRecording(TrainerRecording):
    """Records ``Trainer.fit``: what the callback and the profiler share."""

    def begin_fit(self, trainer: Any) -> None:  # noqa: ANN401
        """Begin with the first step of a trainer."""
        self._trainer, self._steps = trainer, trainer.global_step
        self._before = trainer.global_step
        self.begin(trainer.current_epoch)
        for kind in dict.fromkeys(map(type, trainer.loggers)):
            self.named(kind, "log_metrics", "logging")

    def batch_ended(self) -> None:
        """Note the end of a batch, which ends a step if an optimizer has stepped."""
        if self.running and self._trainer.global_step > self._steps:
            self._steps = self._trainer.global_step
            self.step(self._trainer.current_epoch + self._trainer.is_last_batch)

    def end_fit(self) -> None:
        """End with the last step, and tell what was found."""
        self.end(rank_zero_info, self._log if self.running and self._trainer.loggers else None)

    def _log(self, figures: dict[str, float], number: int | None) -> None:
        step = self._steps if number is None else self._before + number
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(figures), step=step)


class StepscopeCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records ``Trainer.fit``: its steps, validations, checkpoints and logging.

    A step is one of the optimizer: it ends with the batch that ``trainer.global_step`` advances in, and a batch in
    which several optimizers step is one. At the end the findings go to Lightning's log, and figures to its loggers:
    those of each recorded step at the number under which Lightning logs what the step itself logs.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        self._recording = _FitRecording(options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.begin_fit(trainer)
        self._recording.named(type(trainer), "save_checkpoint", "checkpoint")

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401, D102
        self._recording.batch_ended()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.phase(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.end(error=exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401, ARG002, D102
        self._recording.end_fit()


class StepscopeProfiler(Profiler):  # type: ignore[misc, unused-ignore]
    """Records ``Trainer.fit`` as :class:`StepscopeCallback` does, and the actions of Lightning as ranges.

    The program's own actions, ``with self.trainer.profiler.profile("augment")``, are ranges, too. Hooks, whose names
    begin with ``on_``, are not: most of them do nothing.

    Args:
        options: Those of :func:`stepscope.profile`, ``steps`` and ``epochs`` (``docs/options.md``).

    Raises:
        UsageError: An option cannot have the value given.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of `stepscope.profile`
        super().__init__()
        self._recording = _FitRecording(options)
        self._open: defaultdict[str, list[int]] = defaultdict(list)

    def start(self, action_name: str) -> None:  # noqa: D102
        recording, (owner, _, hook) = self._recording, action_name.rpartition(".")
        if owner.startswith("[LightningModule]") and hook == "on_train_start":
            recording.begin_fit(self._lightning_module.trainer)
        elif owner.startswith("[LightningModule]") and hook == "on_validation_start":
            recording.phase("evaluation")
        elif hook == "on_validation_end" and recording.doing == "evaluation":  # of the first to be told so
            recording.phase(None)
        elif action_name == "save_checkpoint" and recording.doing is None:
            recording.phase("checkpoint")
        if recording.running and not hook.startswith("on_"):
            self._open[action_name].append(open_range(action_name, {}))

    def stop(self, action_name: str) -> None:  # noqa: D102
        recording, (owner, _, hook) = self._recording, action_name.rpartition(".")
        if self._open[action_name]:
            close_range(self._open[action_name].pop())
        if action_name == "save_checkpoint" and recording.doing == "checkpoint":
            recording.phase(None)
        elif action_name == "run_training_batch":
            recording.batch_ended()
        elif owner.startswith("[LightningModule]") and hook == "on_train_end":
            recording.end_fit()

    @contextmanager
    def profile(self, action_name: str) -> Generator[str, None, None]:  # noqa: D102
        try:
            with super().profile(action_name):
                yield action_name
        except BaseException as error:
            if action_name == "run_training_epoch":
                self._recording.end(error=error)
            raise
