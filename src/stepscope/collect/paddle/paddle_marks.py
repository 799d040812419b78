"""Ranges that Paddle marks in Python while a profiler records: layers, ``backward``, the optimizer, the program's own.

Paddle's functions test one flag to decide whether to mark. The data loader and ``Tensor.backward`` test it at their
beginning and at their end, and fail if a recording begins in between (on another thread, say). So for these two the
flag is always False. The ``paddle_data`` collector records waits for data; ``backward`` is marked one call deeper,
which ``paddle.autograd.backward`` and ``paddle.grad`` also reach. Paddle's profiler wraps the optimizers until the
process ends; here they are restored when the recording ends, and for wrappers of an earlier profiler the flag is False,
too.

``to_static`` (without ``full_graph``) compiles code again whenever the flag differs from when it was compiled. Once
Paddle has compiled any code, the flag stays False: calls of compiled functions are marked instead of layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.paddle.paddle_optimizers import OptimizerCalls
from stepscope.collect.paddle.paddle_shapes import InputMarks
from stepscope.collect.surgery.paddle_tracer import core

_ALWAYS_OFF = (
    "paddle.io.dataloader.dataloader_iter",
    "paddle.base.dygraph.tensor_patch_methods",
    "paddle.profiler.utils",  # only the wrappers of optimizers test the flag here
)
_FLAG = "in_profiler_mode"
#: Where Paddle compiles parts of functions, and calls what it compiled.
_COMPILES, _CALLS = (
    "paddle.jit.sot.opcode_translator.executor.executor_cache",
    "paddle.jit.dy2static.program_translator",
)
#: Paddle's names of these ranges.
_BACKWARD, _STEP = "Gradient Backward", "Optimization Step"


class RangeMarks:
    """Marks ranges from :meth:`install` to :meth:`remove`.

    Args:
        shapes: Whether to mark inputs, too.
    """

    def __init__(self, *, shapes: bool) -> None:
        self._hooks = MethodHooks()
        self._withdraw: Callable[[], None] = lambda: None
        self._optimizers, self._inputs = OptimizerCalls(self._step), InputMarks() if shapes else None
        self._utils: Any = sys.modules["paddle.profiler.utils"]
        self._event = core()._RecordEvent
        self._types = core().TracerEventType

    def install(self) -> None:
        """Begin to mark."""
        for name in _ALWAYS_OFF:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, _FLAG):
                self._hooks.put(module, _FLAG, _never)
        for name in ("run_backward", "run_partial_grad"):
            self._hooks.around(core().eager, name, self._backward)
        self._optimizers.install()
        if self._inputs is not None:
            self._inputs.install()
        self._utils._is_profiler_used = True
        self._hooks.around(
            getattr(sys.modules.get(_CALLS), "SymbolicStaticFunction", None), "_perform_call", self._call
        )
        self._withdraw = when_imported(_COMPILES, self._follow_compiler)

    def remove(self) -> None:
        """Stop marking, and restore the originals."""
        self._withdraw()
        self._utils._is_profiler_used = False
        if self._inputs is not None:
            self._inputs.remove()
        self._optimizers.remove()
        self._hooks.remove()

    def _follow_compiler(self) -> None:
        cache: Any = getattr(sys.modules[_COMPILES], "OpcodeExecutorCache", None)
        if cache is None:
            return
        self._hooks.around(cache, "translate", self._compile)
        if getattr(cache(), "cache", None):
            self._utils._is_profiler_used = False

    def _compile(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self._utils._is_profiler_used = False
        return original(*args, **kwargs)

    def _call(self, original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if self._utils._is_profiler_used:  # its layer is marked
            return original(function, *args, **kwargs)
        layer = getattr(function, "class_instance", None)
        name = getattr(getattr(function, "_dygraph_function", None), "__name__", "to_static")
        event = self._event(name if layer is None else type(layer).__name__, self._types.Forward)
        try:
            return original(function, *args, **kwargs)
        finally:
            event.end()

    def _backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        event = self._event(_BACKWARD, self._types.Backward)
        try:
            return original(*args, **kwargs)
        finally:
            event.end()

    def _step(self, call: Callable[[], Any], _optimizer: Any) -> Any:  # noqa: ANN401 - what the method returns
        event = self._event(_STEP, self._types.Optimization)
        try:
            return call()
        finally:
            event.end()


def _never() -> bool:
    return False
