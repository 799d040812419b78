"""Hooks around every call by which a Paddle program updates parameters through an optimizer.

These are ``step`` and, in eager mode, ``minimize`` of all optimizers and of Paddle's loss scalers. A scaler skips the
update if a gradient is infinite, but the call still counts as a step. Of nested calls only the outermost counts.

The marks of updates and the counting of steps share the hooks, because a step must end after the range around its
update has closed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from stepscope.collect.hooks.methods import MethodHooks

#: Called with the update, which takes nothing, and the optimizer; returns what the update returns.
Around: TypeAlias = Callable[[Callable[[], Any], Any], Any]

_METHODS = ("step", "minimize")


class OptimizerCalls:
    """Calls ``around`` for every update, also of optimizers whose classes are defined later.

    Args:
        around: Called with the update and the optimizer.
        outside: Whether it encloses the ``around`` of other users.
    """

    def __init__(self, around: Around, *, outside: bool = False) -> None:
        self.around = around
        self.outside = outside

    def install(self) -> None:
        """Begin."""
        global installed
        with _lock:
            if installed is None:
                installed = _Layer()
            installed.users = sorted([*installed.users, self], key=lambda user: user.outside)

    def remove(self) -> None:
        """End; the last user removes the hooks from Paddle's classes."""
        global installed
        self.around = _nothing_around  # breaks a reference cycle: it may refer to the owner of this object
        with _lock:
            if installed is None:
                return
            installed.users = [user for user in installed.users if user is not self]
            if not installed.users:
                installed.remove()
                installed = None


def _nothing_around(call: Callable[[], Any], _optimizer: Any) -> Any:  # noqa: ANN401 - what the method returns
    return call()


_lock = threading.Lock()


class _Layer:
    """The hooks in Paddle's classes."""

    def __init__(self) -> None:
        self.users: list[OptimizerCalls] = []
        self._inside = threading.local()
        self._hooks = MethodHooks()
        self._seen: set[type] = set()
        base = sys.modules["paddle.optimizer.optimizer"].Optimizer
        self._hooks.around(base, "__init__", self._made)
        for kind in _family(base):
            self._watch(kind)
        scalers = sys.modules.get("paddle.amp.grad_scaler")
        for name in ("AmpScaler", "GradScaler"):
            for method in _METHODS:
                if method in vars(getattr(scalers, name, object)):
                    self._hooks.around(getattr(scalers, name), method, self._scaled)

    def remove(self) -> None:
        self._hooks.remove()

    def _made(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        original(optimizer, *args, **kwargs)
        for kind in type(optimizer).__mro__:
            self._watch(kind)

    def _watch(self, kind: type) -> None:
        if kind in self._seen:
            return
        self._seen.add(kind)
        for method in _METHODS:
            if method in vars(kind):
                self._hooks.around(kind, method, self._called)

    def _called(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self._outermost(partial(original, optimizer, *args, **kwargs), optimizer)

    def _scaled(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        optimizer = args[0] if args else kwargs.get("optimizer")
        return self._outermost(partial(original, scaler, *args, **kwargs), optimizer)

    def _outermost(self, call: Callable[[], Any], optimizer: Any) -> Any:  # noqa: ANN401 - what the method returns
        if getattr(self._inside, "step", False) or not is_eager():
            return call()
        for user in self.users:
            call = partial(user.around, call, optimizer)
        self._inside.step = True
        try:
            return call()
        finally:
            self._inside.step = False


#: The hooks in Paddle's optimizers, shared by all users; None as long as nobody uses them.
installed: _Layer | None = None


def is_eager() -> bool:
    """Return whether a call runs an operator; otherwise it only adds the operator to a program."""
    translated = sys.modules["paddle.base.dygraph.base"].in_to_static_mode()
    return bool(sys.modules["paddle"].in_dynamic_mode()) and not translated


def _family(base: type) -> list[type]:
    """Return a class and all classes derived from it."""
    children: list[type] = base.__subclasses__()
    return [base, *(kind for child in children for kind in _family(child))]
