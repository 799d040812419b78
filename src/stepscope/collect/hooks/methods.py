"""Replacing functions of other libraries for a while: the only way in which stepscope patches a class or a module."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

_ABSENT = object()

_LOG = logging.getLogger("stepscope")


class MethodHooks:
    """Replaces attributes of classes and modules until :meth:`remove` puts the originals back.

    An attribute that a class inherited is deleted again, not set: otherwise a later patch of the base class would not
    reach the class. A patch that another library has put over ours stays in place; it goes on calling our wrapper,
    which calls the original and nothing else once ``on`` is False.

    Not locked: the wrappers only read ``on``, and :meth:`remove` takes each entry off a list with one ``pop``, which is
    atomic under the GIL. Two threads that remove at the same time share the entries, and each is undone once. A thread
    that is inside a wrapper when another removes it finishes its call as it began.

    Attributes:
        on: Whether wrappers do more than call through; False after :meth:`remove`.
    """

    def __init__(self) -> None:
        self.on = True
        self._undo: list[Callable[[], bool]] = []

    def around(self, owner: type | ModuleType | None, name: str, around: Callable[..., Any]) -> None:
        """Have ``around(original, *args, **kwargs)`` called in place of a function or method.

        Args:
            owner: What holds it; None, or an owner without that function, is left alone: frameworks' versions differ.
            name: Its name. A class method stays one: ``args`` begin with the class.
            around: Returns what the call returns, and may raise what the original raises.
        """
        original = getattr(owner, name, None)
        if owner is None or original is None:
            return
        class_method = isinstance(vars(owner).get(name), classmethod)
        if class_method:
            original = original.__func__

        @functools.wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            if not self.on:
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self.put(owner, name, classmethod(ours) if class_method else ours)

    def once_before(self, owner: type | ModuleType | None, name: str, action: Callable[[], None]) -> None:
        """Remove all hooks and call ``action`` when a function is called for the first time; then the function runs.

        For frameworks with room for one profiler: the program's own gets it. An error of ``action`` is logged and does
        not reach the caller, whose call is the program's.
        """

        def first(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            self.remove()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - law 1: the program's profiler starts; ours says at its stop why
                _LOG.debug("stepscope: the recording could not be ended for another profiler: %s", error)
            return original(*args, **kwargs)

        self.around(owner, name, first)

    def put(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Replace an attribute, the class's own or an inherited one, by ``value``."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append(functools.partial(_restore, owner, name, value, before))

    def remove(self) -> bool:
        """Put everything back, the last one first; a second call does nothing.

        Returns:
            Whether all of ours were still in place; False where somebody else has patched over one, which stays.
        """
        self.on, alone = False, True
        while True:
            try:
                undo = self._undo.pop()
            except IndexError:
                return alone
            alone = undo() and alone


def _restore(owner: type | ModuleType, name: str, ours: object, before: object) -> bool:
    """Put an attribute back unless somebody else has replaced it; return whether that was done."""
    if vars(owner).get(name) is not ours:
        return False
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
    return True
