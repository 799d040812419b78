"""Empty stand-ins for modules that the installed version of a package has dropped but scripts still import.

The finder comes last on ``sys.meta_path``, so a version that has the modules uses its own. Access to a missing name
raises an error that names the package's version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn


class AbsentModules(MetaPathFinder):
    """Finder of the stand-ins.

    Args:
        names: Their absolute names, each package before its modules.
        instead: What the stand-ins provide, for the error message.
    """

    def __init__(self, names: Sequence[str], instead: str) -> None:
        self._names = tuple(names)
        self._instead = instead
        self._made: list[ModuleType] = []

    def install(self) -> None:
        """Install the finder."""
        if self._names:
            sys.meta_path.append(self)

    def remove(self) -> None:
        """Remove the finder and the modules it has made."""
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
        """Return the spec of a stand-in.

        Raises:
            ModuleNotFoundError: The program imports a module from inside a stand-in.
        """
        if fullname in self._names:
            package = any(name.startswith(f"{fullname}.") for name in self._names)
            return ModuleSpec(fullname, _Maker(self._make), is_package=package)
        package_name = fullname.rpartition(".")[0]
        if any(module.__name__ == package_name for module in self._made):
            # name= must be the package: with the module's name, `from package import module` replaces our message.
            raise ModuleNotFoundError(self._text(fullname), name=package_name)
        return None

    def _make(self, module: ModuleType) -> None:
        def missing(name: str) -> NoReturn:
            raise AttributeError(self._text(f"{module.__name__}.{name}"), name=name, obj=module)

        module.__doc__ = (
            f"Stands in for a module that this version of {module.__name__.partition('.')[0]} does not have."
        )
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
