"""Ranges that Paddle marks in Python while a profiler records: layers, ``backward``, the optimizer, the program's own.

Paddle asks one flag whether to mark. Two of its functions ask it at their beginning and at their end, and fail where a
recording begins between the two (on another thread, say): the data loader and ``Tensor.backward``. These are told that
nothing records. Waits for data are the ``paddle_data`` collector's; ``backward`` is marked one call deeper, where
``paddle.autograd.backward`` and ``paddle.grad`` are seen, too. Paddle's profiler wraps its optimizers for good; here
they are as before when the recording ends, and what an earlier profiler has left in them is told that nothing records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.paddle.paddle_optimizers import OptimizerCalls
from stepscope.collect.surgery.paddle_tracer import core

_NOT_TOLD = (
    "paddle.io.dataloader.dataloader_iter",
    "paddle.base.dygraph.tensor_patch_methods",
    "paddle.profiler.utils",  # only the wrappers of optimizers ask here
)
_FLAG = "in_profiler_mode"
#: Names that Paddle gives to these ranges.
_BACKWARD, _STEP = "Gradient Backward", "Optimization Step"


class Marks:
    """Has ranges marked from :meth:`install` to :meth:`remove`."""

    def __init__(self) -> None:
        self._hooks = MethodHooks()
        self._optimizers = OptimizerCalls(self._step)
        self._utils: Any = sys.modules["paddle.profiler.utils"]
        self._event = core()._RecordEvent
        self._types = core().TracerEventType

    def install(self) -> None:
        """Begin."""
        for name in _NOT_TOLD:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, _FLAG):
                self._hooks.put(module, _FLAG, _never)
        for name in ("run_backward", "run_partial_grad"):
            self._hooks.around(core().eager, name, self._backward)
        self._optimizers.install()
        self._utils._is_profiler_used = True

    def remove(self) -> None:
        """End; everything is as before."""
        self._utils._is_profiler_used = False
        self._optimizers.remove()
        self._hooks.remove()

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
