"""Replace functions of other libraries temporarily: the only way in which stepscope patches classes and modules."""

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

    An attribute that a class inherited is deleted, not set to the original: otherwise a later patch of the base class
    would not reach the class. A patch that another library has put over ours stays in place and still calls our
    wrapper, which only calls the original once ``on`` is False.

    Not locked: the wrappers only read ``on``, and :meth:`remove` removes each entry with ``list.pop``, which is atomic
    under the GIL: if two threads remove at the same time, each entry is undone once. A thread that is inside a wrapper
    while another removes it finishes its call as it began.

    Attributes:
        on: Whether wrappers do more than call the original; False after :meth:`remove`.
    """

    def __init__(self) -> None:
        self.on = True
        self._undo: list[Callable[[], bool]] = []

    def around(self, owner: type | ModuleType | None, name: str, around: Callable[..., Any]) -> None:
        """Have ``around(original, *args, **kwargs)`` called in place of a function or method.

        Args:
            owner: Its class or module. A no-op if it is None or lacks the function: frameworks' versions differ.
            name: Its name. A class method stays a class method: ``args`` begin with the class.
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
        """Before the first call of a function, remove all hooks and call ``action``.

        For frameworks that allow one profiler: the program's own takes precedence. An error of ``action`` is logged and
        not raised, because the caller is the program.
        """

        def first(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            self.remove()
            try:
                action()
            except Exception as error:  # noqa: BLE001 - law 1: the program's profiler must start
                _LOG.debug("stepscope: the recording could not be ended for another profiler: %s", error)
            return original(*args, **kwargs)

        self.around(owner, name, first)

    def put(self, owner: type | ModuleType, name: str, value: object) -> None:
        """Replace an attribute, own or inherited, by ``value``."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append(functools.partial(_restore, owner, name, value, before))

    def remove(self) -> bool:
        """Restore all originals, the last one first; idempotent.

        Returns:
            Whether all our wrappers were in place; False if other code has patched over one, which then stays.
        """
        self.on, alone = False, True
        while True:
            try:
                undo = self._undo.pop()
            except IndexError:
                return alone
            alone = undo() and alone


def _restore(owner: type | ModuleType, name: str, ours: object, before: object) -> bool:
    """Restore an attribute unless other code has replaced it; return whether it was restored."""
    if vars(owner).get(name) is not ours:
        return False
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
    return True
