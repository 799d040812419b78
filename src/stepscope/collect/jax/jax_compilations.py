"""When JAX traces, lowers and compiles a function: spans in the journal, told by ``jax.monitoring``."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

#: What JAX tells of → what the span is called, before the name of the function.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_NS = 1_000_000_000


class Compilations:
    """Listens to JAX from :meth:`install` to :meth:`remove`.

    Args:
        journal: Takes the spans.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._monitoring: Any = sys.modules["jax._src.monitoring"]
        self._listener = self._listen  # one object: JAX finds it by comparison

    def install(self) -> None:
        """Begin."""
        self._monitoring.register_event_duration_secs_listener(self._listener)

    def remove(self) -> None:
        """End; the program may have cleared all listeners meanwhile."""
        if self._listener in self._monitoring.get_event_duration_listeners():
            self._monitoring.unregister_event_duration_listener(self._listener)

    def _listen(self, event: str, duration: float, **facts: object) -> None:
        """Note a stage that has just ended; runs in the thread that compiles."""
        end = time.perf_counter_ns()
        stage = _STAGES.get(event)
        if stage is not None:
            name = f"{stage} {facts.get('fun_name', '')}".rstrip()
            self._journal.span(name, "compile", end - round(duration * _NS), end)
