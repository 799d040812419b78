"""Post-import hooks: an action that runs once the program has imported a module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def when_imported(
    name: str, action: Callable[[], None], around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Callable[[], None]:
    """Call ``action`` once ``name`` has been imported; at once if it is already.

    Args:
        name: Absolute name of a module.
        action: It must not raise.
        around: Returns a context manager that is entered while the module's own code runs.

    Returns:
        A function that withdraws the hook; a no-op once the action has run.
    """
    if name in sys.modules:
        action()
        return lambda: None
    finder = _Finder(name, action, around)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(MetaPathFinder):
    """Wraps the execution of one module; the other finders find the module itself."""

    def __init__(
        self, name: str, action: Callable[[], None], around: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._name = name
        self._action = action
        self._around = around

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.remove()
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._wrap(spec)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _wrap(self, spec: ModuleSpec) -> None:
        """Make the spec's own loader call the action; the loader is restored before the module runs."""
        loader = spec.loader
        original = loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            with self._around():
                original(module)
            self._action()

        try:
            vars(loader)["exec_module"] = exec_module
        except TypeError:
            return  # a loader without instance attributes belongs to a built-in module, never to a framework
