"""Doing something around a framework's functions, and taking it out again without a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

_ABSENT = object()


class MethodHooks:
    """Replaces functions of classes and modules, until :meth:`remove` puts them back.

    What somebody else has put over ours meanwhile stays, and ours, which it calls, only calls through.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._on = True

    def around(self, owner: type | ModuleType | None, name: str, around: Callable[..., Any]) -> None:
        """Have ``around(original, *args, **kwargs)`` called for a function; one that is not there is left out."""
        original = getattr(owner, name, None)
        if owner is None or original is None:
            return

        @functools.wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            if not self._on:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self.put(owner, name, ours)

    def put(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Put a value in place of what is there, or what a base class has."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append(functools.partial(_restore, owner, name, value, before))

    def remove(self) -> None:
        """Put everything back, the last one first."""
        self._on = False
        while self._undo:
            self._undo.pop()()


def _restore(owner: type | ModuleType, name: str, ours: object, before: object) -> None:
    if vars(owner).get(name) is not ours:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
