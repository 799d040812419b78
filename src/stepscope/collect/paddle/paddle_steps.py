"""Steps of Paddle: an optimizer's update, a run of a program with an optimizer in it, or a batch of ``Model.fit``.

In eager mode an optimizer's update is a Python call. In static mode it consists of operators in a program, and a step
is a run of the whole program by an executor; a startup program has no such operators. Of nested calls only the
outermost counts. ``Model.fit`` calls its callbacks at the end of a batch in either mode; nothing else inside it counts.
In a program that has no optimizer, the computation of gradients in eager mode ends a step.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host.live_objects import alive
from stepscope.collect.paddle.paddle_optimizers import OptimizerCalls
from stepscope.collect.steps import AWAITED, Gradients, Stepped
from stepscope.collect.surgery.paddle_tracer import core
from stepscope.trace.paddle_terms import UPDATES

_LOG = logging.getLogger("stepscope")

OPTIMIZER = ("paddle.optimizer.optimizer", "Optimizer")

#: How steps were found, for the manifest.
BY_MODEL = "Model.fit"
BY_CALLS = "calls of optimizers"
BY_PROGRAMS = "runs of programs with an optimizer"
BY_GRADIENTS = "calls of paddle.autograd"


class PaddleSteps:
    """Calls ``observe`` after every event in Paddle that ends a training step.

    Args:
        observe: Called in the thread that stepped. It must not raise.
    """

    def __init__(self, observe: Callable[[Stepped], None]) -> None:
        self._observe = observe
        self._programs = _Programs()
        self._inside = threading.local()
        self._stepped: set[int] = set()
        self._optimizers = OptimizerCalls(self._update, outside=True)
        self._gradients = Gradients(observe, BY_GRADIENTS, "paddle", lambda: bool(_optimizers()))
        self._hooks = MethodHooks()

    def install(self, *, late: bool) -> None:
        """Install the hooks in Paddle's classes; they also apply to existing objects."""
        del late
        self._optimizers.install()
        self._hooks.around(sys.modules["paddle.base.executor"].Executor, "run", self._run)
        self._hooks.around(getattr(sys.modules.get("paddle.hapi.model"), "Model", None), "fit", self._fit)
        callbacks = getattr(sys.modules.get("paddle.hapi.callbacks"), "CallbackList", None)
        self._hooks.around(callbacks, "on_batch_end", self._batch_end)
        for name in ("run_backward", "run_partial_grad"):
            self._hooks.around(core().eager, name, self._differentiate)

    def remove(self) -> None:
        """Remove the hooks. Wrappers that the program has put around them stay, and call Paddle's methods."""
        self._optimizers.remove()
        self._hooks.remove()

    def may_wait(self, steps: int) -> str:
        """Return the class of an optimizer that did not step, in eager mode, in the first ``steps`` steps; else ""."""
        known = self._stepped
        others = _optimizers() if known and steps < AWAITED else ()
        return next((type(one).__name__ for one in others if id(one) not in known), "")

    @property
    def _in_fit(self) -> bool:
        return getattr(self._inside, "model", None) is not None

    def _update(self, call: Callable[[], Any], optimizer: Any) -> Any:  # noqa: ANN401 - what the method returns
        result = call()
        if not self._in_fit:
            self._stepped.add(id(optimizer))
            self._observe(Stepped(optimizer, type(optimizer).__name__, BY_CALLS))
        return result

    def _differentiate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Paddle's
        result = original(*args, **kwargs)
        if not self._in_fit and not self._stepped:
            self._gradients.computed()
        return result

    def _run(self, original: Callable[..., Any], executor: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run a program, and report a step if the program holds an optimizer."""
        result = original(executor, *args, **kwargs)
        if not self._in_fit:
            program = args[0] if args else kwargs.get("program")
            found = self._programs.look(program)
            if found is not None:
                self._observe(found)
        return result

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Train a model; only its batches count as steps, not the steps of its optimizers."""
        outer = getattr(self._inside, "model", None)
        self._inside.model = model
        try:
            return original(model, *args, **kwargs)
        finally:
            self._inside.model = outer

    def _batch_end(self, original: Callable[..., Any], callbacks: Any, mode: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """End a batch of a model after the program's own callbacks."""
        result = original(callbacks, mode, *args, **kwargs)
        model = getattr(self._inside, "model", None)
        if model is not None and mode == "train":
            name = type(getattr(model, "_optimizer", None) or model).__name__
            self._observe(Stepped(model, name, BY_MODEL, loop=True))
        return result


def _optimizers() -> list[Any]:
    """Return the optimizers that are alive; not the object of the base class that Fleet keeps, which never steps."""
    return [one for one in alive(OPTIMIZER) if type(one).__name__ != OPTIMIZER[1]]


class _Programs:
    """Which programs hold an optimizer: a cache that searches a program again when its number of operators changes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int, str]] = {}

    def look(self, program: Any) -> Stepped | None:  # noqa: ANN401 - a Program of either kind, or compiled, or None
        """Return the step that a run of ``program`` is; None if nothing in it updates parameters."""
        try:
            if program is None:
                program = sys.modules["paddle.static"].default_main_program()
            program = getattr(program, "_program", None) or program
            name = self._name(program)
        except Exception:  # noqa: BLE001 - law 1: without a search, the run does not count as a step
            _LOG.debug("stepscope: %s could not be searched for an optimizer", type(program), exc_info=True)
            return None
        return Stepped(program, name, BY_PROGRAMS) if name else None

    def _name(self, program: Any) -> str:  # noqa: ANN401 - a Program of either kind
        size = _size(program)
        known = self._known.get(id(program))
        if known is not None and known[0]() is program and known[1] == size:
            return known[2]
        key, name = id(program), "+".join(sorted(set(_updates(program.global_block()))))
        self._known[key] = weakref.ref(program, lambda gone: self._forget(key, gone)), size, name
        return name

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if key in self._known and self._known[key][0] is gone:
            del self._known[key]


def _size(program: Any) -> int:  # noqa: ANN401 - a Program of either kind
    count = getattr(program, "num_ops", None)
    return int(count()) if count is not None else len(program.global_block().ops)


def _updates(block: Any) -> Iterator[str]:  # noqa: ANN401 - a Block of either kind
    """Yield the names of the operators that update parameters, in a block and the blocks inside it."""
    for operation in block.ops:
        if hasattr(operation, "_is_optimize_op"):
            if operation._is_optimize_op() and operation.type in UPDATES:
                yield str(operation.type)
            continue
        name = str(operation.name()).rpartition(".")[2].rstrip("_")
        if name in UPDATES:
            yield name
        for inner in operation.blocks():
            yield from _updates(inner)
