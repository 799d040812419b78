"""What ``torch.compile`` compiles, as Dynamo's own metrics of each compilation say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.compilations import compiled

_METRICS = "torch._dynamo.utils"
_US = 1_000


class TorchCompilations:
    """Notes a compilation whenever Dynamo has compiled a function, or the backward pass of one."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._withdraw: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Wait for the program to use Dynamo, and hook the function that it calls with the metrics."""
        self._withdraw = when_imported(_METRICS, self._imported)

    def remove(self) -> None:
        """Remove the hook."""
        self._withdraw()
        self._hooks.remove()

    def _imported(self) -> None:
        self._hooks.around(sys.modules[_METRICS], "add_compilation_metrics_to_chromium", self._measured)

    def _measured(self, original: Callable[..., Any], metrics: Any, *args: Any) -> Any:  # noqa: ANN401 - Dynamo's own
        result = original(metrics, *args)
        end, took = perf_counter_ns(), getattr(metrics, "duration_us", None)
        name, file = getattr(metrics, "co_name", None), getattr(metrics, "co_filename", None)
        if took is not None and name is not None:
            backward = "backward " if getattr(metrics, "is_forward", True) is False else ""
            place = f"{name} ({Path(file).name}:{metrics.co_firstlineno})" if file else name
            why = str(getattr(metrics, "recompile_reason", None) or "")
            compiled(f"compile {backward}{name}", f"{backward}{place}", end - int(took) * _US, why=why, end_ns=end)
        return result
