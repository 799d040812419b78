"""Steps of PyTorch: its optimizers have stepped; in a program without any, it has computed gradients."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.steps import AWAITED, Gradients, Stepped

#: How steps were found, for the manifest.
BY_OPTIMIZERS = "optimizer step hooks"
_BY_GRADIENTS = "calls of torch.autograd"


class TorchSteps:
    """Calls ``observe`` after every step of every torch optimizer, in the thread that stepped.

    In ``Optimizer._patch_step_function`` torch wraps ``step`` for its own profiler, once a class; this wraps it once
    more, around torch's wrapper, so that a step ends when ``optimizer.step()`` has returned and torch's range is
    closed. If torch lacks that function, or optimizers exist already, torch's hook for all optimizers serves instead.

    A program that updates its parameters itself constructs no optimizer: its steps end with the computation of
    gradients, once it has done so :data:`~stepscope.collect.steps.PATIENCE` times.
    """

    def __init__(self, observe: Callable[[Stepped], None]) -> None:
        self._observe = observe
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inside = threading.local()
        self._hooks = MethodHooks()
        self._remove_hook: Callable[[], None] = lambda: None
        self._compiling: Callable[[], bool] = bool
        self._gradients = Gradients(observe, _BY_GRADIENTS, "torch")

    def install(self, *, late: bool) -> None:
        """Put the hooks into torch, which is imported.

        A no-op in a program that already trains with compiled code: the hooks would invalidate that code, and torch
        would compile it again.
        """
        compiler = sys.modules.get("torch._dynamo.utils")
        if late and getattr(compiler, "compilation_time_metrics", None):
            return
        module = import_module("torch.optim.optimizer")
        # torch's compiler, when it traces, folds this test to the constant ``True``.
        self._compiling = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", bool)
        patch = None if late else getattr(module.Optimizer, "_patch_step_function", None)
        if patch is None:
            self._remove_hook = module.register_optimizer_step_post_hook(self._hook).remove
            return

        @functools.wraps(patch)
        def patch_and_wrap(optimizer: Any) -> None:  # noqa: ANN401 - a torch.optim.Optimizer
            patch(optimizer)
            if self._hooks.on:
                self._alive.add(optimizer)
                self._wrap(type(optimizer))

        self._hooks.put(module.Optimizer, "_patch_step_function", patch_and_wrap)
        for name in ("backward", "grad"):
            self._hooks.around(sys.modules["torch"].autograd, name, self._compute_gradients)

    def remove(self) -> None:
        """Remove the hooks; a wrapper that the program has put around one stays and calls through."""
        self._remove_hook()
        self._hooks.remove()

    def may_wait(self, steps: int) -> str:
        """Return the class of an optimizer that has not stepped in the first ``steps`` steps and still may; else ""."""
        return next((type(one).__name__ for one in self._alive - self._stepped if steps < AWAITED), "")

    def _wrap(self, owner: type) -> None:
        original = owner.step  # type: ignore[attr-defined]
        if getattr(original, "stepscope_wraps", None) is self:
            return

        hooks = self._hooks

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the optimizer
            if not hooks.on or self._compiling():
                return original(*args, **kwargs)
            return self._outermost(original, args, kwargs)

        step.stepscope_wraps = self  # type: ignore[attr-defined]
        hooks.put(owner, "step", step)

    def _outermost(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Call ``step`` and report it once, even if a subclass calls its parent's ``step``."""
        optimizer = args[0]
        if getattr(self._inside, "optimizer", None) is optimizer:
            return original(*args, **kwargs)
        outer = getattr(self._inside, "optimizer", None)
        self._inside.optimizer = optimizer
        try:
            result = original(*args, **kwargs)
        finally:
            self._inside.optimizer = outer
        self._tell(optimizer)
        return result

    def _compute_gradients(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's
        result = original(*args, **kwargs)
        if not self._alive and not self._stepped and not self._compiling():
            self._gradients.computed()
        return result

    def _hook(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - torch's hook
        if not self._compiling():
            self._tell(optimizer)

    def _tell(self, optimizer: Any) -> None:  # noqa: ANN401 - a torch.optim.Optimizer
        self._stepped.add(optimizer)
        self._observe(Stepped(optimizer, type(optimizer).__name__, BY_OPTIMIZERS))
