"""Extensions: what other installed packages add to stepscope, by entry points. Examples: ``docs/extending.md``.

An extension that cannot be loaded, or has the name of something that stepscope has itself, is left out: one warning of
the logger ``stepscope`` names it. Nothing is searched before the first question, which takes some 20 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

#: Group of entry points → what the object that an entry point names must have.
GROUPS: dict[str, tuple[str, ...]] = {
    "stepscope.collectors": ("available", "prepare", "start", "stop", "describe"),
    "stepscope.readers": ("suffixes", "is_trace", "read"),
    "stepscope.results": ("function", "extension", "doc"),
    "stepscope.formats": ("name", "write"),
    "stepscope.rules": (),
    "stepscope.communication": ("transport", "kernels", "operators"),
}


@cache
def _installed() -> Any:  # noqa: ANN401 - its type differs between versions of Python
    """Return all entry points: reading what is installed takes some 20 ms, whatever is asked for."""
    from importlib.metadata import entry_points

    return entry_points()


@cache
def extensions(group: str) -> dict[str, Any]:
    """Return the objects that installed packages offer in one of :data:`GROUPS`, by the name of their entry point."""
    found: dict[str, Any] = {}
    for entry in _installed().select(group=group):
        try:
            loaded = entry.load()
        except Exception as error:  # noqa: BLE001 - law 1: another package's error must not end a training
            _leave_out(group, entry.name, f"{type(error).__name__}: {error}")
            continue
        missing = [member for member in GROUPS[group] if not hasattr(loaded, member)]
        if missing:
            _leave_out(group, entry.name, f"{entry.value} has no {', '.join(missing)}")
        elif entry.name in found:
            _leave_out(group, entry.name, "two packages offer this name; the first serves")
        else:
            found[entry.name] = loaded
    return found


def guarded(group: str, ours: Collection[str] = ()) -> list[Callable[..., Any]]:
    """Return the functions or classes of a group; one that raises returns None, with a warning that names it."""

    def guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:  # noqa: ANN401 - that of the extension
            try:
                return function(*arguments)
            except Exception as error:  # noqa: BLE001 - law 1, as above
                _leave_out(group, name, f"{type(error).__name__}: {error}")
                return None

        return call

    return [guard(name, function) for name, function in besides(group, ours).items()]


def besides(group: str, ours: Collection[str]) -> dict[str, Any]:
    """Return the extensions of a group whose names stepscope itself does not have."""
    taken = [name for name in extensions(group) if name in ours]
    for name in taken:
        _leave_out(group, name, "stepscope has one of this name")
    return {name: loaded for name, loaded in extensions(group).items() if name not in taken}


@cache
def _leave_out(group: str, name: str, reason: str) -> None:
    """Say it once."""
    import logging

    logging.getLogger("stepscope").warning(
        "stepscope: extension %s of %s is left out: %s.", name, group, " ".join(reason.split())
    )
