"""Models and optimizers that the program has made, by weak references only.

A class of a framework reports each of its objects from the import of the framework on. What was made before, because
the program itself starts the recording later, is found by one look at the objects that the garbage collector tracks.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
import types
import weakref
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any

from stepscope.collect.frameworks import FRAMEWORKS, Framework, Located
from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.compilations import unwatch, watch

_LOG = logging.getLogger("stepscope")

#: A look at all objects takes 10 to 30 ms; looks take at most this part of the time.
_SHARE = 0.01
#: Generator functions that are told.
_GENERATORS = 64

#: Class → its living objects by id. Not locked: each access is one operation of a dictionary.
_alive: dict[Located, dict[int, weakref.ref[Any]]] = {}
#: When the next look is allowed, of ``time.monotonic``.
_next_look = 0.0


class LiveObjects:
    """Follows the objects of the frameworks' classes, and has each framework's uses and compilations noted."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []
        self._uses: list[Any] = []
        self._watched: list[str] = []

    def install(self) -> None:
        """Follow the frameworks that are imported, and the others when they are."""
        for framework in FRAMEWORKS.values():
            if framework.objects or framework.uses or framework.compilations:
                self._withdraw.append(when_imported(framework.name, partial(self._watch, framework)))

    def remove(self) -> None:
        """Remove all hooks; idempotent. What is known stays known, as long as it lives."""
        while self._withdraw:
            self._withdraw.pop()()
        while self._uses:
            self._uses.pop().remove()
        while self._watched:
            unwatch(self._watched.pop())
        self._hooks.remove()

    def _watch(self, framework: Framework) -> None:
        try:
            watch(framework.name)
            self._watched.append(framework.name)
            if framework.uses is not None:
                uses = getattr(import_module(framework.uses[0]), framework.uses[1])()
                uses.install()
                self._uses.append(uses)
            kinds = {located: getattr(sys.modules[located[0]], located[1]) for located in framework.objects}
            for located, kind in kinds.items():
                for method in ("__init__", "__setstate__"):  # __setstate__: copies, and what was read from a file
                    self._report(located, kind, method)
            _look(kinds)
        except Exception as error:  # noqa: BLE001 - law 1: its state stays unknown; the program goes on
            _LOG.debug("stepscope: the objects of %s are not followed: %s", framework.name, error)

    def _report(self, located: Located, kind: type, method: str) -> None:
        original = getattr(kind, method, None)
        if original is None:
            return
        hooks, known = self._hooks, _alive.setdefault(located, {})
        compiler = getattr(sys.modules.get("torch"), "compiler", None) if located[0].startswith("torch.") else None
        # torch's compiler, when it traces, folds this test to the constant ``True``.
        compiling = getattr(compiler, "is_compiling", bool)

        @wraps(original)
        def made(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the method
            if not hooks.on or compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            _remember(known, args[0])
            return result

        hooks.put(kind, method, made)


def alive(located: Located) -> list[Any]:
    """Return the living objects of a class of a framework, the oldest first; the caller lets go of them at once."""
    return [found for ref in list(_alive.get(located, {}).values()) if (found := ref()) is not None]


def _remember(known: dict[int, weakref.ref[Any]], made: Any) -> None:  # noqa: ANN401 - the framework's
    key = id(made)

    def gone(ref: weakref.ref[Any]) -> None:
        if known.get(key) is ref:  # else another object has the id already
            del known[key]

    try:
        known[key] = weakref.ref(made, gone)
    except TypeError:  # a subclass without weak references
        return


def _look(kinds: dict[Located, type]) -> None:
    """Find the objects that were made before the hooks, unless a look has just been taken."""
    global _next_look
    start = time.monotonic()
    if start < _next_look:
        return
    objects = gc.get_objects()
    found = {
        type_: located for type_ in set(map(type, objects)) for located, kind in kinds.items() if kind in type_.__mro__
    }
    if found:
        for one in objects:
            located = found.get(type(one))
            if located is not None and id(one) not in _alive[located]:
                _remember(_alive[located], one)
    end = time.monotonic()
    _next_look = end + (end - start) / _SHARE


def generators(libraries: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return name, file and line of the program's generators that have begun and wait to be asked for more.

    Between two steps these are the ones that a loop goes through. One look at all objects.

    Args:
        libraries: Directories whose code is not the program's own.
    """
    codes = {
        one.gi_code
        for one in gc.get_objects()
        if type(one) is types.GeneratorType and one.gi_suspended and not one.gi_code.co_filename.startswith(libraries)
    }
    found = [{"function": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno} for code in codes]
    return sorted(found, key=lambda one: (str(one["file"]), one["line"]))[:_GENERATORS]


def source_of(function: Any) -> dict[str, Any]:  # noqa: ANN401 - anything that can be called
    """Return name, file and line of a function of the program; of a callable object, of its class's ``__call__``.

    No attribute of the program's own objects is read: that could run code of theirs.
    """
    for _ in range(8):
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType) and "__wrapped__" in function.__dict__:
            function = function.__dict__["__wrapped__"]
        elif isinstance(function, types.FunctionType):
            code = function.__code__
            return {"function": function.__qualname__, "file": code.co_filename, "line": code.co_firstlineno}
        else:
            call = next((vars(kind)["__call__"] for kind in type(function).__mro__ if "__call__" in vars(kind)), None)
            if not isinstance(call, types.FunctionType):
                break
            function = call
    return {"function": str(getattr(type(function), "__name__", "")), "file": None, "line": None}
