"""``paddle.fluid.profiler``: when it stops, it prints where the time went and writes a profile file.

::

    import stepscope.compat.fluid.profiler as profiler

    with profiler.profiler("CPU", "total", "/tmp/profile"):
        for batch in batches:
            executor.run(program, feed=batch)

It records every framework in the process: Paddle (static and eager), PyTorch, MindSpore. ``docs/fluid.md`` describes
it, and lists the errors of the original that are corrected here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.start.profile import absolute
from stepscope.compat.fluid import delivery
from stepscope.compat.fluid.recorder import Block, recorder
from stepscope.errors import ArgumentError

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_STATES = ("CPU", "GPU", "All")
_TRACER_OPTIONS = ("Default", "OpDetail", "AllOpDetail")
_SORTED_KEYS = (None, "default", "calls", "total", "max", "min", "ave")
#: As the document's text spells it; its list of allowed values has ``calls``.
_SPELLED = {"call": "calls"}
_DEFAULT_PATH = "/tmp/profile"  # noqa: S108 - the document's own default

_lock = threading.RLock()
#: The block that start_profiler began.
_started: Block | None = None


def cuda_profiler(
    output_file: str | os.PathLike[str], output_mode: str | None = None, config: Sequence[str] | None = None
) -> AbstractContextManager[None]:
    """Write a log of the GPU's work in a block; see :mod:`stepscope.compat.fluid.cuda_profiler`.

    Raises:
        ValueError: ``output_mode`` is neither ``kvp`` nor ``csv``.
        UsageError: No GPU or no CUPTI was found, or another profiler uses CUPTI.
        OutputError: The log cannot be written.
    """
    # Imported late: the module needs Polars, and this one only the standard library.
    from stepscope.compat.fluid import cuda_profiler as implementation

    return implementation.cuda_profiler(output_file, output_mode, config)


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str | os.PathLike[str] = _DEFAULT_PATH,
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Record the block, then print the report and write the profile file.

    If the block raises an exception, the report and the file are written too, and the exception propagates. A nested
    block has a separate report and file, which cover the time of that block.

    Args:
        state: ``CPU``, ``GPU`` or ``All``: whose time is counted.
        sorted_key: Column to sort by: ``calls``, ``total``, ``max``, ``min`` or ``ave``; None or ``default`` sorts by
            the time at which events first ended.
        profile_path: The profile file, written in every state; missing directories are created.
        tracer_option: ``Default`` shows operators, ``OpDetail`` and ``AllOpDetail`` also their parts.

    Raises:
        ValueError: An argument is none of these. Nothing has run yet.
        OutputError: The profile file cannot be written. Nothing has run yet.
    """
    block = _block(state, tracer_option)
    sorted_key = _checked_key(sorted_key)
    path = absolute(Path(profile_path))
    delivery.check_writable(path)
    with _lock:
        recorder().open(block)
    try:
        yield
    except BaseException:
        _finish(block, sorted_key, path)
        raise
    _finish(block, sorted_key, path)
    pass_on()


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Begin to record; a no-op while a recording runs. See :func:`profiler`.

    Raises:
        ValueError: An argument does not have one of the allowed values.
    """
    global _started
    with _lock:
        if recorder().running:
            return
        block = _block(state, tracer_option)
        _started = block
        recorder().open(block)


def stop_profiler(sorted_key: str | None = None, profile_path: str | os.PathLike[str] = _DEFAULT_PATH) -> None:
    """Stop, print the report and write the profile file; a no-op unless a recording runs. See :func:`profiler`.

    If the profile file cannot be written at ``profile_path``, it is written to a temporary directory, which the log
    names.

    Raises:
        ValueError: ``sorted_key`` does not have one of the allowed values; recording goes on.
    """
    global _started
    with _lock:
        current = recorder()
        if not current.running:
            return
        sorted_key = _checked_key(sorted_key)
        path = absolute(Path(profile_path))
        block, _started = _started, None
        if block is not None and block in current.blocks:
            _finish(block, sorted_key, path)
        else:  # a block of `with profiler(...)` is open: this is its report, and recording ends for all
            with current.halting():
                delivery.deliver(current, current.blocks[0], sorted_key, path)
    pass_on()


def reset_profiler() -> None:
    """Drop what has been recorded since the start; a no-op unless a recording runs.

    It does not affect :func:`cuda_profiler`.
    """
    with _lock:
        if recorder().running:
            recorder().reset()
    pass_on()


def _finish(block: Block, sorted_key: str | None, path: Path) -> None:
    with _lock:
        current = recorder()
        if block in current.blocks:  # not in a forked child
            with current.closing(block):
                delivery.deliver(current, block, sorted_key, path)


def _block(state: str, tracer_option: str) -> Block:
    if state not in _STATES:
        message = "The state must be 'CPU' or 'GPU' or 'All'."
        raise ArgumentError(message)
    if tracer_option not in _TRACER_OPTIONS:
        message = "tracer option must be 'Default', 'OpDetail', 'AllOpDetail'."
        raise ArgumentError(message)
    return Block(state, tracer_option)


def _checked_key(sorted_key: str | None) -> str | None:
    sorted_key = _SPELLED.get(sorted_key or "", sorted_key)
    if sorted_key not in _SORTED_KEYS:
        message = "The sorted_key must be None or in 'calls', 'total', 'max', 'min' and 'ave'"
        raise ArgumentError(message)
    return sorted_key
