"""Runs of jitted functions, observed without replacing any object that the user holds.

JAX calls two Python functions when a jitted function has run. ``_get_fastpath_data`` decides, after a run through
Python, whether C++ may bypass Python from then on: it sees first runs, and all runs of functions with effects
(``jax.debug.print``). After every other run C++ calls the post hook, which serves ``jax_debug_nans``. It costs 0.1 µs
and is not part of the key of compiled programs, so it triggers no compilation.

JAX disables the hook in a thread when a ``with jax.debug_nans(…)`` ends there, which ``logsumexp`` and others contain.
So :class:`_PostHook` replaces the object that holds the hook: it stays enabled, and calls JAX's own check when JAX
would.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from stepscope.collect.hooks.methods import MethodHooks

#: Called with the function, its inputs and its results, both as pytrees; it must not raise.
Ran: TypeAlias = Callable[[Any, Any, Any], None]

_STATE = "_post_hook_state"


class Runs:
    """Calls ``ran`` after every run of a jitted function, on its thread, from :meth:`install` to :meth:`remove`.

    The function is the user's if JAX knows it. Functions that are traced inside another are not reported.
    """

    def __init__(self, ran: Ran) -> None:
        self._ran = ran
        self._hooks = MethodHooks()
        self._post_hook: _PostHook | None = None

    def install(self) -> None:
        """Begin; hooks that this version of JAX lacks are skipped."""
        api, config = sys.modules.get("jax._src.api"), sys.modules.get("jax._src.config")
        self._hooks.around(sys.modules.get("jax._src.pjit"), "_get_fastpath_data", self._first)
        state = getattr(api, _STATE, None)
        if api is not None and state is not None:
            self._post_hook = _PostHook(state, getattr(config, "config_ext", None), self._ran)
            self._post_hook.install()
            self._hooks.put(api, _STATE, self._post_hook)

    def remove(self) -> None:
        """End, and restore everything."""
        self._hooks.remove()
        if self._post_hook is not None:
            self._post_hook.remove()
            self._post_hook = None

    def _first(self, original: Callable[..., Any], executable: Any, *args: Any) -> Any:  # noqa: ANN401 - what JAX returns
        """A function has run through Python: ``args`` are the structure of its results, its inputs, its results, …."""
        if executable is not None:  # None while a function is traced inside another
            function = sys._getframe(2).f_locals.get("fun")  # of JAX's caller, behind the frame of MethodHooks
            self._ran(function, args[1], args[2])
        return original(executable, *args)


class _PostHook:
    """Replaces JAX's state of the post hook, for the functions of JAX that set it.

    Args:
        state: JAX's own.
        config: JAX's module with the value that means "not set in this thread".
        ran: Called after each run.
    """

    def __init__(self, state: Any, config: Any, ran: Ran) -> None:  # noqa: ANN401 - JAX's own
        self._state = state
        self._unset = getattr(config, "unset", None)
        self._ran = ran
        self._theirs: Any = None
        self._hook = self._call  # one bound method, compared by identity
        self._here = threading.local()

    def install(self) -> None:
        """Report runs, in every thread in which JAX has not disabled its hook."""
        self._theirs = self._state.get_global()
        self._state.set_global(self._hook)
        if self._state.get_local() is None:
            self.set_local(None)

    def remove(self) -> None:
        """Put JAX's hook back."""
        if self._state.get_global() is self._hook:
            self._state.set_global(self._theirs)
        if self._off:
            self._state.set_local(None)

    def set_global(self, hook: Any) -> None:  # noqa: ANN401 - JAX's check, or None
        """JAX's check begins or ends: it is called from ours."""
        self._theirs = hook

    def get_global(self) -> Any:  # noqa: ANN401 - JAX's check, or None
        """Return what JAX has set."""
        return self._theirs

    def set_local(self, hook: Any) -> None:  # noqa: ANN401 - JAX's check, or None
        """JAX's check begins in this thread and replaces ours, or ends in it."""
        self._here.off = hook is None
        self._state.set_local(self._unset if hook is None else hook)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever JAX's state has
        return getattr(self._state, name)

    @property
    def _off(self) -> bool:
        """Whether JAX has disabled the hook in this thread."""
        return getattr(self._here, "off", False)

    def _call(self, compiled: Any, args: Any, kwargs: Any, result: Any) -> None:  # noqa: ANN401 - JAX's hook
        if self._theirs is not None and not self._off:
            self._theirs(compiled, args, kwargs, result)  # its error belongs to the program
        self._ran(getattr(compiled, "_fun", compiled), (args, kwargs), result)
