"""Errors of the training itself that surface inside the recording.

MindSpore's PyNative mode runs operators on its own threads and raises the error of a failed one once, at the next wait
for them. A window that closes waits for them, too, and may get an error of the training. The error is kept until the
window is saved, and raised at the end of the program's call of stepscope, or of the optimizer that ended the step.
"""

from __future__ import annotations

from collections import deque

_kept: deque[BaseException] = deque()


def keep(error: BaseException) -> None:
    """Keep an error of the training until :func:`pass_on`."""
    _kept.append(error)


def pass_on() -> None:
    """Raise the kept error, if any."""
    if _kept:
        raise _kept.popleft()
