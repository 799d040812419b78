"""What JAX traces, lowers and compiles, as ``jax.monitoring`` reports it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from time import perf_counter_ns
from types import FrameType
from typing import Any

from stepscope.collect.host.compilations import compiled, described, noted

#: Event of ``jax.monitoring`` → first word of the span; the name of the compiled function follows.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_TRACED = "trace"
_NS = 1_000_000_000
#: Frames between our listener and the function of JAX that traces; it has the types of the arguments.
_FARTHEST, _TYPES = 8, "in_type"


class JaxCompilations:
    """Notes a compilation whenever JAX has traced, lowered or compiled a function."""

    def __init__(self) -> None:
        self._monitoring: Any = sys.modules["jax._src.monitoring"]
        self._listener = self._listen  # one bound method: JAX compares with it when it is removed
        self._last = threading.local()

    def install(self) -> None:
        """Register with ``jax.monitoring``."""
        self._monitoring.register_event_duration_secs_listener(self._listener)

    def remove(self) -> None:
        """Unregister, unless the program has cleared all listeners meanwhile."""
        if self._listener in self._monitoring.get_event_duration_listeners():
            self._monitoring.unregister_event_duration_listener(self._listener)

    def _listen(self, event: str, duration: float, **facts: object) -> None:
        """Note a stage that has just ended, on the thread that compiles. Later stages have the facts of the first."""
        end = perf_counter_ns()
        stage = _STAGES.get(event)
        if stage is None:
            return
        function = str(facts.get("fun_name", ""))
        name, begin = f"{stage} {function}".rstrip(), end - round(duration * _NS)
        if stage == _TRACED:
            arguments = _arguments(sys._getframe(1))
            self._last.traced = function, compiled(name, function, begin, arguments=arguments, end_ns=end)
            return
        traced, known = getattr(self._last, "traced", ("", {}))
        noted(name, known if traced and traced in function else {"function": function}, begin, end)


def _arguments(frame: FrameType | None) -> list[str] | None:
    """Return the types of the arguments that JAX traces with, and the values of static ones, from its own frames.

    None if this version has others.
    """
    for _ in range(_FARTHEST):
        if frame is None:
            return None
        types = frame.f_locals.get(_TYPES)
        if types is not None:
            return [*(str(one) for one in getattr(types, "vals", types)), *_static(frame.f_locals)]
        frame = frame.f_back
    return None


def _static(names: Mapping[str, Any]) -> list[str]:
    """Return the static arguments of a jitted function, by JAX's own record of which they are."""
    jitted, args, kwargs = names.get("ji"), names.get("args", ()), names.get("kwargs", {})
    places, keys = getattr(jitted, "static_argnums", None) or (), getattr(jitted, "static_argnames", None) or ()
    given = {f"static {place}": args[place] for place in places if -len(args) <= place < len(args)}
    given |= {str(key): kwargs[key] for key in keys if key in kwargs}
    return [f"{name}={text}" for name, text in zip(given, described(list(given.values())), strict=False)]
