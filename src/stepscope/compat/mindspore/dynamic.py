"""``DynamicProfilerMonitor``: a JSON file that is edited during training starts and stops windows."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.start.dynamic import Conductor
from stepscope.collect.start.profile import absolute
from stepscope.errors import ArgumentError

_LOG = logging.getLogger("stepscope")

_SUBFOLDER = "rank{rank}_start{start}_stop{stop}"
_DAEMON = "MSMONITOR_USE_DAEMON"


class _Monitor:
    """Starts and stops windows in a running job when ``profiler_config.json`` is edited.

    ::

        monitor = DynamicProfilerMonitor(cfg_path="./cfg", output_path="./dyn_profile_data")
        model.train(10, data, callbacks=[monitor])      # or call monitor.step() after every step of a hand-written loop

    It is a ``mindspore.train.Callback`` if MindSpore is installed. Keys, codings and rules of the file are MindSpore's
    (``docs/environment.md``). The steps poll the file; no process or thread watches it. Windows are written to
    ``{output_path}/rank{r}_start{a}_stop{b}``, unless ``prof_path`` in the file names another directory.

    Args:
        cfg_path: Directory of the file, shared by all ranks; a missing file is created with defaults.
        output_path: Directory of the windows.
        poll_interval: Seconds between two reads of the file; an integer ≥ 1.

    Raises:
        TypeError: ``cfg_path`` is not a string.
        OutputError: The directory cannot be created.
    """

    def __init__(
        self,
        cfg_path: str | None = None,
        output_path: str | None = "./dyn_profile_data",
        poll_interval: int = 2,
        **kwargs: Any,  # noqa: ANN401 - MindSpore's takes any, too
    ) -> None:
        del kwargs
        super().__init__()
        path = _directory(cfg_path)
        output = "./dyn_profile_data" if output_path is None else output_path
        self._conductor = Conductor(path, absolute(Path(output)), _interval(poll_interval), _SUBFOLDER)
        self._conductor.open(1)

    @property
    def recorded(self) -> list[RecordedWindow]:
        """The windows so far."""
        return self._conductor.recorded

    def step_begin(self, run_context: Any) -> None:  # noqa: ANN401 - a mindspore.train.RunContext
        """Note that a step of ``Model.train`` begins."""
        number = int(run_context.original_args().cur_step_num)
        if number == self._conductor.number:
            self._conductor.restart_step()
        else:
            self._conductor.arrive(number)

    def step_end(self, run_context: Any) -> None:  # noqa: ANN401 - a mindspore.train.RunContext
        """Note that a step of ``Model.train`` ends."""
        self._conductor.arrive(int(run_context.original_args().cur_step_num) + 1)

    def step(self) -> None:
        """Note that a step of a hand-written training loop has ended; the first step is number 1."""
        self._conductor.arrive(self._conductor.number + 1)

    def on_train_end(self, run_context: Any) -> None:  # noqa: ANN401, ARG002 - a mindspore.train.RunContext
        """Close the open window at the end of training."""
        self._conductor.close()


def __getattr__(name: str) -> type[_Monitor]:
    if name != "DynamicProfilerMonitor":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    bases = (import_module("mindspore.train").Callback,) if find_spec("mindspore") else ()
    made = type(name, (_Monitor, *bases), {"__doc__": _Monitor.__doc__, "__module__": __name__})
    globals()[name] = made
    return made


def _directory(cfg_path: object) -> Path:
    if os.environ.get(_DAEMON) == "1":
        _LOG.warning(
            "stepscope: %s=1 is ignored: stepscope reads the file and does not use msmonitor's daemon.", _DAEMON
        )
    if not isinstance(cfg_path, str):
        message = f"If you set '{_DAEMON}' to not 1, The cfg_path must be a string, not {type(cfg_path).__name__}."
        raise ArgumentError(message, "Write DynamicProfilerMonitor(cfg_path='./cfg').")
    return absolute(Path(cfg_path))


def _interval(poll_interval: object) -> float:
    if type(poll_interval) is not int:
        _LOG.error("Poll interval must be an integer, reset to 2.")
        return 2.0
    if poll_interval < 1:
        _LOG.error("Poll interval must be greater than 1, reset to 2.")
        return 2.0
    return float(poll_interval)
