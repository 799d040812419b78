"""What ``torch.compile`` compiles, as Dynamo's own metrics of each compilation say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.compilations import compiled

_METRICS, _CALLBACKS = "torch._dynamo.utils", "torch._dynamo.callback"
_US = 1_000


class TorchCompilations:
    """Notes a compilation whenever Dynamo has compiled a function, or the backward pass of one."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []
        #: Number of a compilation → name and place of its function, and why it was compiled again.
        self._functions: dict[str, tuple[str, str, str]] = {}
        self._handler: Any = None
        self._begun = 0

    def install(self) -> None:
        """Wait for the program to use Dynamo, and hook the function that it calls with the metrics.

        The backward pass is compiled when it runs first: Dynamo announces that, and has no metrics of it.
        """
        self._withdraw = [when_imported(_METRICS, self._imported), when_imported(_CALLBACKS, self._announced)]

    def remove(self) -> None:
        """Remove the hooks."""
        for withdraw in self._withdraw:
            withdraw()
        self._hooks.remove()
        if self._handler is not None:
            with suppress(ValueError):  # the program may have cleared them (torch.compiler.reset)
                self._handler.remove_start_callback(self._backward_begins)
                self._handler.remove_end_callback(self._backward_ends)
            self._handler = None

    def _imported(self) -> None:
        self._hooks.around(sys.modules[_METRICS], "add_compilation_metrics_to_chromium", self._measured)

    def _announced(self) -> None:
        callback = sys.modules[_CALLBACKS]
        if hasattr(getattr(callback, "CallbackTrigger", None), "LAZY_BACKWARD"):
            self._handler = callback.callback_handler
            self._handler.register_start_callback(self._backward_begins)
            self._handler.register_end_callback(self._backward_ends)

    def _measured(self, original: Callable[..., Any], metrics: Any, *args: Any) -> Any:  # noqa: ANN401 - Dynamo's own
        result = original(metrics, *args)
        end, took = perf_counter_ns(), getattr(metrics, "duration_us", None)
        name, file = getattr(metrics, "co_name", None), getattr(metrics, "co_filename", None)
        backward = getattr(metrics, "is_forward", True) is False
        if took is None or name is None or (backward and self._handler is not None):
            return result
        place = f"{name} ({Path(file).name}:{metrics.co_firstlineno})" if file else name
        why = str(getattr(metrics, "recompile_reason", None) or "")
        self._functions[str(getattr(metrics, "compile_id", ""))] = name, place, why
        of = "backward " if backward else ""
        compiled(f"compile {of}{name}", f"{of}{place}", end - int(took) * _US, why=why, end_ns=end)
        return result

    def _backward_begins(self, args: Any) -> None:  # noqa: ANN401 - Dynamo's own
        self._begun = perf_counter_ns() if args.callback_trigger.name == "LAZY_BACKWARD" else 0

    def _backward_ends(self, args: Any) -> None:  # noqa: ANN401 - Dynamo's own
        if self._begun:
            name, place, why = self._functions.get(str(args.compile_id), ("", "", ""))
            compiled(f"compile backward {name}".strip(), f"backward {place}".strip(), self._begun, why=why)
            self._begun = 0
