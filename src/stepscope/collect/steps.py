"""Where training steps end in a program that does not say so: when its optimizers have stepped.

With one optimizer every ``optimizer.step()`` ends a training step; gradient accumulation needs nothing more, because
the optimizer steps once in it. With several, the one that steps least often ends the step (the generator of a GAN whose
critic steps five times); where they step equally often, the one that comes last in the order they were first seen in.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

#: How steps were found, for the manifest.
BY_OPTIMIZERS = "optimizer step hooks"

#: Optimizer steps that are remembered.
_HISTORY = 512
#: One that steps less than once in so many steps of the busiest is no part of the cycle.
_RARE = 50
#: Optimizer steps without the one that ends training steps, after which another one takes its place.
_GONE = 64
#: Steps of the only optimizer seen so far in which others that exist may still begin.
_PATIENCE = 20

_ONE = "each step of the optimizer ends a training step"
_LEAST = "the optimizer that steps least often ends a training step"
_LAST = "optimizers step equally often; the last in their order ends a training step"


class StepFinder:
    """Learns from a sequence of optimizer steps which of them end training steps.

    Optimizers are told apart by any hashable key.
    """

    def __init__(self) -> None:
        self._history: deque[object] = deque(maxlen=_HISTORY)
        self._counts: Counter[object] = Counter()
        self._order: list[object] = []
        self._closer: object = None
        self._absent = 0
        self.rule = _ONE

    @property
    def number(self) -> int:
        """Training steps so far, by the rule as it stands."""
        return self._counts[self._closer]

    @property
    def closer(self) -> object:
        """The optimizer whose steps end training steps, by the rule as it stands."""
        return self._closer

    @property
    def optimizers(self) -> int:
        """Optimizers that have stepped so far."""
        return len(self._order)

    def stepped(self, optimizer: object, *, learning: bool) -> bool:
        """Take note of a step of ``optimizer`` and return whether it ends a training step.

        Args:
            optimizer: Its key.
            learning: The rule may still change; otherwise it does only when the optimizer that it names disappears.
        """
        if optimizer not in self._counts:
            self._order.append(optimizer)
        self._counts[optimizer] += 1
        self._history.append(optimizer)
        self._absent = 0 if optimizer == self._closer else self._absent + 1
        if learning or self._closer is None or self._absent > _GONE:
            self._learn()
        return optimizer == self._closer

    def forget(self, optimizer: object) -> None:
        """An optimizer does not exist any more: the others make up the cycle."""
        if self._counts.pop(optimizer, None) is not None:
            self._order.remove(optimizer)
        if optimizer == self._closer:
            self._closer = None

    def _learn(self) -> None:
        if self._absent > _GONE:
            recent = set(list(self._history)[-self._absent :])
            for gone in [optimizer for optimizer in self._order if optimizer not in recent]:
                self.forget(gone)
            self._absent = 0
        # Who stepped only once has not come back yet: that makes a cycle only for the one that came last.
        counts = {name: count for name, count in self._counts.items() if count > 1 or name == self._order[-1]}
        most = max(counts.values())
        fewest = min(count for count in counts.values() if count * _RARE >= most)
        self._closer = [optimizer for optimizer in self._order if counts.get(optimizer) == fewest][-1]
        self.rule = _ONE if len(counts) == 1 else _LEAST if most > fewest else _LAST


class OptimizerSteps:
    """Calls ``observe`` after every step of every torch optimizer that is made from now on.

    ``Optimizer._patch_step_function`` is where torch itself wraps ``step`` for its profiler, once a class; this wraps
    once more, outside of that, so that a step ends when ``optimizer.step()`` has returned and torch's own range around
    it is closed. Where torch has no such place, its hook for all optimizers serves.

    Args:
        observe: Called with the optimizer, in the thread that stepped. It must not raise.
    """

    def __init__(self, observe: Callable[[Any], None]) -> None:
        self._observe = observe
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self._wrapped: list[tuple[type, Any, Any]] = []
        self._inside = threading.local()
        self._undo: Callable[[], None] = lambda: None
        self._on = False

    def install(self) -> None:
        """Put the hooks into torch, which is imported."""
        module = import_module("torch.optim.optimizer")
        self._compiling = _compiling_test()
        self._on = True
        patch = getattr(module.Optimizer, "_patch_step_function", None)
        if patch is None:
            handle = module.register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: self._tell(optimizer))
            self._undo = handle.remove
            return

        @functools.wraps(patch)
        def patch_and_wrap(optimizer: Any) -> None:  # noqa: ANN401 - a torch.optim.Optimizer
            patch(optimizer)
            if self._on:
                self._alive.add(optimizer)
                self._wrap(type(optimizer))

        module.Optimizer._patch_step_function = patch_and_wrap
        self._undo = functools.partial(_restore, module.Optimizer, "_patch_step_function", patch_and_wrap, patch)

    def remove(self) -> None:
        """Take the hooks out again; what the program has wrapped around them meanwhile stays, and calls through."""
        self._on = False
        self._undo()
        for owner, ours, original in self._wrapped:
            _restore(owner, "step", ours, original)
        self._wrapped.clear()

    def may_wait(self, steps: int) -> bool:
        """Return whether optimizers exist that have not stepped in the first ``steps`` steps and still may."""
        return steps < _PATIENCE and len(self._alive - self._stepped) > 0

    def _wrap(self, owner: type) -> None:
        original = owner.step  # type: ignore[attr-defined]
        if getattr(original, "stepscope_wraps", None) is self:
            return

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the optimizer
            if not self._on or self._compiling():
                return original(*args, **kwargs)
            return self._outermost(original, args, kwargs)

        step.stepscope_wraps = self  # type: ignore[attr-defined]
        owner.step = step  # type: ignore[attr-defined]
        self._wrapped.append((owner, step, original))

    def _outermost(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Call ``step`` and tell of it once, also where a subclass calls its parent's ``step``."""
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

    def _tell(self, optimizer: Any) -> None:  # noqa: ANN401 - a torch.optim.Optimizer
        self._stepped.add(optimizer)
        self._observe(optimizer)


class OptimizerLog:
    """Notes when optimizers stepped during one window, and tells afterwards which training steps that makes.

    For a profile whose program never calls ``step()``. Nothing is put into a program that has compiled something: its
    compiled code would be compiled again.
    """

    def __init__(self) -> None:
        self._times: list[tuple[int, str]] = []
        self._handle: Any = None
        self._finder = StepFinder()

    def install(self) -> None:
        """Begin to note steps of all optimizers, where torch is imported and can tell."""
        compiler = sys.modules.get("torch._dynamo.utils")
        if "torch" not in sys.modules or getattr(compiler, "compilation_time_metrics", None):
            return
        module = import_module("torch.optim.optimizer")
        is_compiling = _compiling_test()

        def note(optimizer: Any, _args: Any, _kwargs: Any) -> None:  # noqa: ANN401 - torch's hook
            if not is_compiling():
                self._times.append((time.perf_counter_ns(), f"{type(optimizer).__name__} {id(optimizer)}"))

        self._handle = module.register_optimizer_step_post_hook(note)

    def remove(self) -> None:
        """Stop noting."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def steps(self, start_ns: int) -> list[tuple[int, int]]:
        """Return start and end of each training step since ``start_ns``, times of ``time.perf_counter_ns``."""
        for _, optimizer in self._times:
            self._finder.stepped(optimizer, learning=True)
        ends = [end for end, optimizer in self._times if optimizer == self._finder.closer]
        return list(pairwise([start_ns, *ends]))

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest; empty where there were none."""
        if not self._finder.optimizers:
            return {}
        names = sorted({optimizer.split()[0] for _, optimizer in self._times})
        return {"source": "inferred", "by": BY_OPTIMIZERS, "optimizers": names, "rule": self._finder.rule}


def _compiling_test() -> Callable[[], bool]:
    """Return torch's test for being traced by its compiler, which sees it as the constant ``True``."""
    test: Callable[[], bool] = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", bool)
    return test


def _restore(owner: type, name: str, ours: object, original: object) -> None:
    if vars(owner).get(name) is ours:
        setattr(owner, name, original)
