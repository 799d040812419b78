"""Code that runs in the processes that a program spawns by ``multiprocessing``, before the program's own.

A spawned process, or one of a fork server, first reads what its parent has prepared for it. Into that goes one object
more: reading it runs the code. A process that is forked without a server reads nothing; it inherits its parent's hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported

_GUARDED = """
try:
    {code}
except Exception:  # law 1: a child that cannot import stepscope works without it
    pass
"""


def run_in_children(hooks: MethodHooks, name: str, code: Callable[[], str | None]) -> Callable[[], None]:
    """Run code in every process that is spawned from now on, until ``hooks`` are removed.

    Args:
        hooks: Hold the replaced function of ``multiprocessing``.
        name: Tells it from other such code.
        code: Returns a line of Python for the next child; None for none. It must not raise.

    Returns:
        A function that withdraws the hook as long as the program has not imported ``multiprocessing``.
    """

    def prepare(original: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - multiprocessing's
        prepared, line = original(*args, **kwargs), code()
        return prepared if line is None else {**prepared, name: _Code(_GUARDED.format(code=line))}

    module = "multiprocessing.spawn"
    return when_imported(module, lambda: hooks.around(sys.modules[module], "get_preparation_data", prepare))


class _Code:
    """Runs in the process that unpickles it. The function is Python's ``exec``, so that unpickling never fails."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, object]]]:
        return exec, (self._code, {})
