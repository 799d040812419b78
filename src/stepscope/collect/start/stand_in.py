"""``stepscope run --as NAME``: for one run, another profiler's names are stepscope's; the script is unchanged.

The names are replaced in the other package's own modules as soon as the script has imported that package, so the order
and the path by which the script reaches them do not matter. :meth:`StandIn.remove` restores everything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from stepscope.collect.hooks.absent_modules import AbsentModules
from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported


@dataclass(frozen=True)
class Package:
    """A package whose names are replaced; :mod:`stepscope.compat` has them.

    Attributes:
        trigger: Module whose import triggers the replacement.
        home: Module that holds our names.
        names: Module → its name → our name, with its module where that is not ``home``.
        absent: Modules of older versions, made if this version lacks them.
    """

    trigger: str
    home: str
    names: Mapping[str, Mapping[str, str]]
    absent: tuple[str, ...] = ()


#: Names of the packages whose names are replaced now.
active: set[str] = set()


class StandIn:
    """Replaces a package's names by ours; on an error, calls ``failed`` with it and leaves the script its own."""

    def __init__(self, name: str, package: Package, failed: Callable[[Exception], None]) -> None:
        self.name = name
        self._package = package
        self._failed = failed
        self._names = MethodHooks()
        self._withdraw: Callable[[], None] = lambda: None
        self._absent = AbsentModules(self._package.absent, f"`stepscope run --as {name}` provides its profiler")

    def install(self) -> None:
        """Wait for the script to import the package."""
        active.add(self.name)
        self._withdraw = when_imported(self._package.trigger, self._imported)

    def remove(self) -> None:
        """Put the package's own names back."""
        active.discard(self.name)
        self._withdraw()
        self._names.remove()
        self._absent.remove()

    def _imported(self) -> None:
        try:
            self._absent.install()
            for module, name, ours in list(self._pairs()):
                self._names.put(module, name, ours)
        except Exception as error:  # noqa: BLE001 - law 1: the script runs with its own names
            self.remove()
            self._failed(error)

    def _pairs(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Yield each module, the name in it, and what takes its place."""
        for path, names in self._package.names.items():
            try:
                module = sys.modules.get(path) or import_module(path)
            except ImportError:  # this version of the package lacks the module
                continue
            for name, ours in names.items():
                home, _, own = ours.rpartition(".")
                yield module, name, getattr(import_module(home or self._package.home), own)
