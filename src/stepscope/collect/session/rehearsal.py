"""A window that is opened and closed once before the first step, so that opening the first real one is quick.

Much is slow only the first time: the imports of the collectors, the first reading of the machine's counters, the first
start and stop of a framework's own profiler. While a training is stalled by that, the workers of its loaders fill their
queues; the next steps then drain them and wait less for data than the others do. So :func:`rehearse` does all of it
once, with the same code as a real window, in a temporary directory, before the training begins.

A rehearsal must not change the training: it runs no operator, and initialises no device. On a machine with a GPU it
comes when the program uses the GPU, after the first step: initialising CUDA in its place would break a program that
still chooses its devices, or forks before it uses them.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.collect.cuda import cupti_collector, cupti_library
from stepscope.collect.frameworks import imported_frameworks
from stepscope.collect.options import Options
from stepscope.collect.session.session import running_options
from stepscope.collect.session.window import COMPLETE, Settings, Window
from stepscope.trace.run_directory import RankDirectory

_LOG = logging.getLogger("stepscope")

#: What has been rehearsed in this process, or in the one it was forked from: frameworks and options.
_done: set[tuple[tuple[str, ...], Options]] = set()


def rehearse(options: Options) -> bool:
    """Open and close a window with these options, once in a process.

    Not while a session runs, whose window it would disturb, and not yet if the program may still choose its GPU.

    An error is logged for debugging only: the real window meets it again, and reports it.

    Returns:
        Whether a window was opened and closed.
    """
    imported = imported_frameworks()
    key = (tuple(framework.name for framework in imported), options)
    if key in _done or not imported or running_options() is not None or _gpu_is_unused():
        return False
    _done.add(key)
    final: dict[str, Any] = {option: False for framework in imported for option in framework.unrehearsed}
    settings = Settings(replace(options, **final), Path(), "rehearsal", "a rehearsal", dict)
    silent, _LOG.disabled = _LOG.disabled, True  # what is wrong is said once, by the real window
    problem = None
    try:
        with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
            _play(settings, RankDirectory(Path(directory) / "rehearsal"))
    except Exception as error:  # noqa: BLE001 - law 1: the real window opens later than it could; nothing else is lost
        problem = error
    finally:
        _LOG.disabled = silent
    if problem is not None:
        _LOG.debug("stepscope: the rehearsal failed", exc_info=problem)
    return problem is None


def _play(settings: Settings, directory: RankDirectory) -> None:
    window = Window(settings, directory)
    try:
        window.prepare()
        window.start({})
    finally:
        window.finish(COMPLETE, {})
        window.settle()


def _gpu_is_unused() -> bool:
    """Whether this machine has an NVIDIA GPU that the program does not use, or not yet."""
    return cupti_library.driver() is None and any(path.exists() for path in cupti_collector.DEVICES)
