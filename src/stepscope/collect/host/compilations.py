"""Compilations: what a framework compiles while the window is open, for which arguments, and why it compiles again.

Each is a span of kind ``compile`` on the thread that compiles, with the arguments ``function`` (its name and place),
``arguments`` (types and shapes, if the framework says them) and ``why`` (only of a function that was compiled before).

The framework is watched from the first session on, or from its import under ``stepscope run``: the reason of a
compilation is the difference from the one before, which may lie outside the window. Compilations outside every window
go to the listeners, which keep them for the whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from stepscope.collect.frameworks import FRAMEWORKS, imported_frameworks

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal
    from stepscope.collect.protocol import Context

#: Functions whose arguments are remembered; arguments and differences that are named.
_MOST, _NAMED, _DIFFERENCES = 4096, 64, 4

#: Called with the name of a stage, its facts, and its begin and end of ``time.perf_counter_ns``; it must not raise.
Listener: TypeAlias = "Callable[[str, Mapping[str, object], int, int], None]"

#: What is told of every compilation, also outside windows.
listeners: list[Listener] = []
#: Function → how often it was compiled in this process.
counts: Counter[str] = Counter()
#: Function → its arguments when it was compiled last. Not locked: each access is one operation of the dictionary.
_known: dict[str, Sequence[str]] = {}
#: Framework → its watcher, and how many need it.
_watchers: dict[str, tuple[Watcher, int]] = {}
#: The collector of the open window.
_current: CompilationsCollector | None = None


class Watcher(Protocol):
    """Calls :func:`compiled` after every compilation of one framework, from ``install`` to ``remove``."""

    def install(self) -> None:
        """Install the hooks; the framework is imported."""
        ...

    def remove(self) -> None:
        """Remove them."""
        ...


class CompilationsCollector:
    """Writes the compilations of all frameworks into the journal."""

    name = "compilations"

    def __init__(self) -> None:
        self._frameworks: list[str] = []
        self._journal: Journal | None = None
        self._noted = 0

    def available(self) -> str | None:
        """Return why nothing can be watched: the program has imported no framework."""
        return None if imported_frameworks() else "the program has imported no framework"

    def prepare(self, context: Context) -> None:
        """Keep the journal for the spans."""
        self._journal = context.journal

    def start(self) -> None:
        """Watch the frameworks that the program has imported."""
        global _current
        _current = self
        for framework in imported_frameworks():
            self._frameworks.append(framework.name)
            watch(framework.name)

    def stop(self) -> list[Path]:
        """Watch them no longer; all spans are in the journal."""
        global _current
        if _current is self:
            _current = None
        while self._frameworks:
            unwatch(self._frameworks.pop())
        return []

    def describe(self) -> dict[str, object]:
        """Return the number of compilations and stages of them."""
        return {"compilations": self._noted}

    def note(self, name: str, begin_ns: int, end_ns: int, facts: Mapping[str, object]) -> None:
        """Write a compilation, or a stage of one, into the journal."""
        if self._journal is not None:
            self._noted += 1
            self._journal.span(name, "compile", begin_ns, end_ns, facts)


def watch(framework: str) -> None:
    """Watch a framework that the program has imported, until :func:`unwatch` has been called as often."""
    watcher, users = _watchers.get(framework, (None, 0))
    located = FRAMEWORKS[framework].compilations
    if watcher is None and located is not None:
        made: Watcher = getattr(import_module(located[0]), located[1])()
        made.install()
        watcher = made
    if watcher is not None:
        _watchers[framework] = watcher, users + 1


def unwatch(framework: str) -> None:
    """Undo one :func:`watch`."""
    watcher, users = _watchers.pop(framework, (None, 0))
    if watcher is not None and users > 1:
        _watchers[framework] = watcher, users - 1
    elif watcher is not None:
        watcher.remove()


def compiled(
    name: str, function: str, begin_ns: int, *, arguments: Sequence[str] | None = None, why: str = "", end_ns: int = 0
) -> Mapping[str, object]:
    """Note a compilation on the thread that compiled, and return its facts.

    Args:
        name: Name of the span.
        function: What was compiled: the same text for every compilation of it.
        begin_ns: Begin, of ``time.perf_counter_ns``.
        arguments: Types and shapes of its arguments, as :func:`described` returns them; None if unknown.
        why: Why it was compiled again, if the framework says so; else it is found by the arguments.
        end_ns: End; 0 means now.
    """
    end_ns = end_ns or perf_counter_ns()
    if function in counts or len(counts) < _MOST:
        counts[function] += 1
    before = _known.get(function)
    if arguments is not None:
        if len(_known) >= _MOST:
            _known.clear()
        _known[function] = arguments
        why = difference(before, arguments) if before is not None else why
    facts: dict[str, object] = {"function": function}
    if arguments is not None:
        facts["arguments"] = ", ".join(arguments)
    if why:
        facts["why"] = why
    noted(name, facts, begin_ns, end_ns)
    return facts


def noted(name: str, facts: Mapping[str, object], begin_ns: int, end_ns: int) -> None:
    """Note a further stage of a compilation that :func:`compiled` has noted."""
    if _current is not None:
        _current.note(name, begin_ns, end_ns, facts)
    for listener in listeners:
        listener(name, facts, begin_ns, end_ns)


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Return in what the arguments of two compilations differ."""
    if len(before) != len(now):
        return f"{len(now)} arguments, before {len(before)}"
    changed = [
        f"argument {place}: {new}, before {old}"
        for place, (old, new) in enumerate(zip(before, now, strict=True))
        if old != new
    ]
    if not changed:
        return "the same arguments: another object of the function, or something else that it depends on"
    more = f"; and {len(changed) - _DIFFERENCES} more" if len(changed) > _DIFFERENCES else ""
    return "; ".join(changed[:_DIFFERENCES]) + more


def described(values: Sequence[Any]) -> list[str]:
    """Return type and shape of each tensor, the value of numbers and texts, and the type of anything else."""
    return [_described(value) for value in values[:_NAMED]]


def _described(value: Any, depth: int = 3) -> str:  # noqa: ANN401 - an argument of the program
    shape, kind = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and kind is not None:
        return f"{str(kind).rpartition('.')[2]}{list(shape)}"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:32])
    if depth and isinstance(value, list | tuple):
        return f"({', '.join(_described(item, depth - 1) for item in value[:_NAMED])})"
    if depth and isinstance(value, dict):
        return f"({', '.join(f'{key}: {_described(item, depth - 1)}' for key, item in list(value.items())[:_NAMED])})"
    return type(value).__name__


def placed(function: Any) -> str:  # noqa: ANN401 - a function of the program
    """Return the name of a function, with its file and line if it has any."""
    name = str(getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__))
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
