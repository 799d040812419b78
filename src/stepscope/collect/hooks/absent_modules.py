"""Modules that scripts of an older version of a package import, and this version lacks: empty ones take their place.

They are found after all others, so that a version that has them keeps its own. What is not in them is said clearly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn


class AbsentModules(MetaPathFinder):
    """Finds the modules that are missing.

    Args:
        names: Their absolute names, each package before what is in it.
        instead: What is provided, for those who look for more.
    """

    def __init__(self, names: Sequence[str], instead: str) -> None:
        self._names = tuple(names)
        self._instead = instead
        self._made: list[ModuleType] = []

    def install(self) -> None:
        """Begin to find them."""
        if self._names:
            sys.meta_path.append(self)

    def remove(self) -> None:
        """Take them out again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        while self._made:
            module = self._made.pop()
            package, _, name = module.__name__.rpartition(".")
            sys.modules.pop(module.__name__, None)
            vars(sys.modules.get(package, module)).pop(name, None)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a missing module.

        Raises:
            ModuleNotFoundError: One inside of it is wanted.
        """
        if fullname in self._names:
            package = any(name.startswith(f"{fullname}.") for name in self._names)
            return ModuleSpec(fullname, _Maker(self._make), is_package=package)
        package_name = fullname.rpartition(".")[0]
        if any(module.__name__ == package_name for module in self._made):
            # With the name of the module itself, `from package import module` would drop this text for Python's own.
            raise ModuleNotFoundError(self._text(fullname), name=package_name)
        return None

    def _make(self, module: ModuleType) -> None:
        def missing(name: str) -> NoReturn:
            raise AttributeError(self._text(f"{module.__name__}.{name}"), name=name, obj=module)

        module.__doc__ = f"Stands in for a module that this {module.__name__.partition('.')[0]} has no more."
        vars(module)["__getattr__"] = missing
        self._made.append(module)

    def _text(self, wanted: str) -> str:
        package = wanted.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "of this version")
        return f"{package} {version} has no {wanted}, and {self._instead}. Write the rest for this {package}."


class _Maker(Loader):
    """Makes an empty module."""

    def __init__(self, make: Callable[[ModuleType], None]) -> None:
        self._make = make

    def exec_module(self, module: ModuleType) -> None:
        self._make(module)
