"""Errors of the training itself that a recording meets first.

MindSpore's PyNative mode runs operators on threads of its own and tells of a failed one where the program waits for
them next, once. A window that closes waits for them, too: the error that it meets is not its own. It is kept until the
window is whole, and raised where the program would have met it: when the program's call of stepscope, or of the
optimizer that ended the step, returns.
"""

from __future__ import annotations

from collections import deque

_kept: deque[BaseException] = deque()


def keep(error: BaseException) -> None:
    """Keep an error of the training until :func:`pass_on`."""
    _kept.append(error)


def pass_on() -> None:
    """Raise the error of the training that was met, if any."""
    if _kept:
        raise _kept.popleft()
