"""What MindSpore compiles: networks in graph mode, and functions under ``jit``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host.compilations import compiled, described, placed

_UNKNOWN = "it was compiled before the recording, for other arguments or as another object"


class MindSporeCompilations:
    """Notes a compilation whenever MindSpore has compiled a cell or a function; MindSpore asks before every run."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._api: Any = sys.modules.get("mindspore.graph.api") or sys.modules["mindspore.common.api"]

    def install(self) -> None:
        """Install the hooks; they also apply to existing objects."""
        self._hooks.around(self._api._CellGraphExecutor, "compile", self._cell)
        self._hooks.around(self._api._JitExecutor, "compile", self._function)

    def remove(self) -> None:
        """Remove the hooks."""
        self._hooks.remove()

    def _cell(self, original: Callable[..., Any], executor: Any, cell: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        begin = perf_counter_ns()
        result = original(executor, cell, *args, **kwargs)
        if isinstance(result, tuple) and len(result) > 1 and result[1]:
            name = type(cell).__name__
            why = _UNKNOWN if len(getattr(cell, "compile_cache", ())) > 1 else ""
            compiled(f"compile {name}", placed(cell.construct), begin, arguments=described(args), why=why)
        return result

    def _function(self, original: Callable[..., Any], executor: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        cache: set[str] = getattr(self._api, "ms_compile_cache", set())
        begin, before = perf_counter_ns(), len(cache)
        phase = original(executor, *args, **kwargs)
        if len(cache) > before:
            function = executor.fn
            prefix = f"{function.__module__}.{function.__name__}.{function.__code__.co_filename}."
            why = _UNKNOWN if any(other.startswith(prefix) for other in cache if other != phase) else ""
            compiled(f"compile {function.__name__}", placed(function), begin, arguments=described(args[1:]), why=why)
        return phase
