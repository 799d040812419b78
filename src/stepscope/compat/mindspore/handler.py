"""``tensorboard_trace_handler``: sets the directory of runs, and analyses a window when it is ready."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("stepscope")

_LONGEST_WORKER = 226

#: Directory and first part of run names, as the last handler was given them; None if not given.
chosen: tuple[str | None, str | None] = (None, None)


def tensorboard_trace_handler(
    dir_name: str | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,  # noqa: FBT001, FBT002 - as documented
    async_mode: bool = False,  # noqa: FBT001, FBT002
) -> Callable[[Any], None]:
    """Return a function for ``on_trace_ready`` that computes the results of a window.

    As in MindSpore the call itself sets the directory of all profiles constructed after it; it overrides their
    ``output_path``.

    Args:
        dir_name: Directory of runs; None means ``./data``.
        worker_name: First part of the names of runs; None means this machine's name. The process id follows it.
        analyse_flag: Compute results; if False, ``stepscope report`` or ``analyse()`` can do it later.
        async_mode: Compute them in a process of low priority while training goes on.
    """
    global chosen
    analyse_flag = _bool("analyse_flag", analyse_flag, default=True)
    async_mode = _bool("async_mode", async_mode, default=False)
    chosen = (_checked("dir_name", dir_name) or "./data", _checked("worker_name", worker_name))

    def handler(prof: Any) -> None:  # noqa: ANN401 - a profile, or one of MindSpore's
        if analyse_flag:
            prof.analyse(async_mode=async_mode)

    return handler


def output_of(given: str | None) -> Path:
    """Return the directory of runs: the last handler's, the constructor's, the environment's, or ``./data``."""
    directory = chosen[0]
    if directory is not None and given is not None:
        _LOG.warning(
            "Both on_trace_ready path and output_path are provided. "
            "The on_trace_ready path takes effect. Final path is %s",
            directory,
        )
    return Path(directory or given or os.environ.get("MS_DIAGNOSTIC_DATA_PATH") or "./data").expanduser()


def worker() -> str:
    """Return the first part of the names of runs."""
    return f"{chosen[1] or socket.gethostname()}_{os.getpid()}"


def _bool(name: str, value: object, *, default: bool) -> bool:
    if isinstance(value, bool):
        return value
    _LOG.warning("%s is not bool, set by default.", name)
    return default


def _checked(name: str, value: object) -> str | None:
    """Return the value if it is a usable text; else log MindSpore's line and return None."""
    if value is None or (isinstance(value, str) and value and (name == "dir_name" or len(value) < _LONGEST_WORKER)):
        return value
    _LOG.warning("Invalid parameter %s, reset it to default.", name)
    return None
