"""Steps of MindSpore: a step of ``Model.train``, a call of an optimizer, or a run of a graph with an optimizer in it.

In PyNative mode an optimizer's update is a Python call. In graph mode, and in a function under ``jit``, it is an
operator in a compiled graph, and a step is a run of the whole graph. To decide whether a graph holds an optimizer, the
cells, or the objects that the function's code refers to, are searched. Of nested calls only the outermost counts.
While no optimizer has stepped, a graph that runs repeatedly counts: it may update its parameters itself.
In a program that has no optimizer, the computation of gradients in PyNative mode ends a step.
``Model.train`` and ``Model.fit`` call their callbacks at the end of a step in either mode; nothing else inside counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.host.live_objects import alive
from stepscope.collect.steps import AWAITED, Gradients, Stepped

_Find: TypeAlias = "Callable[..., Stepped]"

_LOG = logging.getLogger("stepscope")

CELL = ("mindspore.nn.cell", "Cell")

#: How steps were found, for the manifest.
BY_MODEL = "Model.train"
BY_CALLS = "calls of optimizers"
BY_GRAPHS = "runs of graphs with an optimizer"
BY_RUNS = "runs of a graph"
BY_GRADIENTS = "gradients computed in PyNative mode"

#: How many calls deep, from a function under ``jit``, to search for an optimizer.
_DEPTH = 6
#: Runs of a graph without an optimizer, after which it counts if no optimizer has stepped; and graphs to count.
_PATIENCE, _GRAPHS = 8, 256


class MindSporeSteps:
    """Calls ``observe`` after every event in MindSpore that ends a training step.

    Args:
        observe: Called in the thread that stepped; see :func:`stepscope.collect.steps.make_hooks`.
    """

    def __init__(self, observe: Callable[[Stepped], None]) -> None:
        self._observe = observe
        self._bases = _optimizer_classes()
        self._known = _Known()
        self._inside = threading.local()
        self._stepped: set[int] = set()
        self._hooks = MethodHooks()
        self._trained = False
        self._runs: dict[int, list[int]] = {}
        self._gradients = Gradients(observe, BY_GRADIENTS, "mindspore", self._optimizers_exist)

    def install(self, *, late: bool) -> None:
        """Install the hooks in MindSpore's classes; they also apply to existing objects."""
        del late
        for base in self._bases:
            self._hooks.around(base, "__call__", functools.partial(self._call, self._optimizer))
        api = sys.modules.get("mindspore.graph.api") or sys.modules["mindspore.common.api"]
        self._hooks.around(api._CellGraphExecutor, "__call__", functools.partial(self._call, self._cell))
        self._hooks.around(api._JitExecutor, "__call__", functools.partial(self._call, self._function))
        self._hooks.around(api._PyNativeExecutor, "grad", self._differentiate)
        capture = getattr(sys.modules.get("mindspore.graph._utils.pijit_context"), "PIJitCaptureContext", None)
        if capture is not None:
            self._hooks.around(capture, "__enter__", self._enter)
            self._hooks.around(capture, "__exit__", self._exit)
        model = sys.modules["mindspore.train.model"]
        self._hooks.around(model.Model, "_train", self._train)
        self._hooks.around(model._CallbackManager, "on_train_step_end", self._step_end)

    def remove(self) -> None:
        """Remove the hooks. Wrappers that the program has put around them stay, and call MindSpore's methods."""
        self._hooks.remove()

    def may_wait(self, steps: int) -> str:
        """Return the class of an optimizer that others were called without in the first ``steps`` steps; else ""."""
        known, bases = self._stepped, self._bases
        others = alive(CELL) if known and steps < AWAITED else ()
        return next((type(one).__name__ for one in others if isinstance(one, bases) and id(one) not in known), "")

    def _call(self, find: _Find, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run a call; report a step if it holds an optimizer and no enclosing call does."""
        found = None if getattr(self._inside, "step", False) else find(*args)
        if found is None or found.by == BY_RUNS:
            result = original(*args, **kwargs)
            if found is not None and not self._trained:
                self._ran(found)
            return result
        self._inside.step = True
        try:
            result = original(*args, **kwargs)
        finally:
            self._inside.step = False
        self._trained = True
        self._observe(found)
        return result

    def _differentiate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = original(*args, **kwargs)
        if not self._trained and not getattr(self._inside, "step", False):
            self._gradients.computed()
        return result

    def _optimizers_exist(self) -> bool:
        return any(isinstance(one, self._bases) for one in alive(CELL))

    def _ran(self, found: Stepped) -> None:
        """Report the runs of a graph without an optimizer, once it has run often enough."""
        key = id(getattr(found.owner, "__code__", found.owner))
        ends = self._runs.setdefault(key, []) if len(self._runs) < _GRAPHS else self._runs.get(key, [])
        ends.append(time.perf_counter_ns())
        if len(ends) == _PATIENCE:
            for end in ends:
                self._observe(dataclasses.replace(found, at_ns=end, late=end != ends[-1]))
        elif len(ends) > _PATIENCE:
            ends.pop()
            self._observe(found)

    def _enter(self, original: Callable[..., Any], capture: Any) -> Any:  # noqa: ANN401 - MindSpore's own
        """Begin a call under ``jit(capture_mode="bytecode")``, which runs parts of the function as graphs."""
        if not getattr(self._inside, "step", False):
            graph = self._graph(capture.fn, lambda: _in_code(capture.fn, None, self._bases))
            found = graph if graph.by == BY_GRAPHS else None
            self._inside.captured, self._inside.step = (capture, found), found is not None
        return original(capture)

    def _exit(self, original: Callable[..., Any], capture: Any, kind: Any, *error: Any) -> Any:  # noqa: ANN401
        """End such a call."""
        result = original(capture, kind, *error)
        outermost, found = getattr(self._inside, "captured", (None, None))
        if found is not None and outermost is capture:
            self._inside.captured, self._inside.step = (None, None), False
            if kind is None:
                self._trained = True
                self._observe(found)
        return result

    def _train(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Train a model; only its own steps count, not those of its optimizers."""
        self._trained = True
        outer = getattr(self._inside, "model", None), getattr(self._inside, "step", False)
        self._inside.model, self._inside.step = model, True
        try:
            return original(model, *args, **kwargs)
        finally:
            self._inside.model, self._inside.step = outer

    def _step_end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """End a step of a model after the program's own callbacks."""
        result = original(*args, **kwargs)
        model = getattr(self._inside, "model", None)
        if model is not None:
            name = type(getattr(model, "_optimizer", None) or model).__name__
            self._observe(Stepped(model, name, BY_MODEL, loop=True))
        return result

    def _optimizer(self, optimizer: Any, *_: Any) -> Stepped:  # noqa: ANN401 - a mindspore.nn.Optimizer
        self._stepped.add(id(optimizer))
        return Stepped(optimizer, type(optimizer).__name__, BY_CALLS)

    def _cell(self, _executor: Any, cell: Any, *_: Any) -> Stepped:  # noqa: ANN401 - a mindspore.nn.Cell
        return self._graph(cell, lambda: _in_cell(cell, self._bases))

    def _function(self, executor: Any, *_: Any) -> Stepped:  # noqa: ANN401 - a _JitExecutor
        function, holder = executor.fn, executor.obj
        owner = function if holder is None else holder
        return self._graph(owner, lambda: _in_cell(holder, self._bases) or _in_code(function, holder, self._bases))

    def _graph(self, owner: Any, look: Callable[[], list[type]]) -> Stepped:  # noqa: ANN401 - a cell or function
        name = self._known.get(owner, lambda: "+".join(sorted({kind.__name__ for kind in look()})))
        return Stepped(owner, name, BY_GRAPHS if name else BY_RUNS)


class _Known:
    """Names found for objects, by identity (MindSpore's cells redefine ``==``), while the objects live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}

    def get(self, thing: Any, find: Callable[[], str]) -> str:  # noqa: ANN401 - whatever can be referenced weakly
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        try:
            reference = weakref.ref(thing)
            name = find()
        except Exception:  # noqa: BLE001 - law 1: the program's object may raise anything; it counts as no step
            _LOG.debug("stepscope: %s could not be searched for an optimizer", type(thing), exc_info=True)
            return ""
        self._known[id(thing)] = reference, name
        return name


def _optimizer_classes() -> tuple[type, ...]:
    """Return the two classes from which all of MindSpore's optimizers are derived."""
    names = ("mindspore.nn.optim.optimizer", "mindspore.experimental.optim.optimizer")
    return tuple(sys.modules[name].Optimizer for name in names if name in sys.modules)


def _in_cell(cell: Any, bases: tuple[type, ...]) -> list[type]:  # noqa: ANN401 - a mindspore.nn.Cell, or another object
    """Return the classes of the optimizers among a cell and the cells inside it."""
    if not isinstance(cell, sys.modules["mindspore.nn"].Cell):
        return []
    return [type(part) for _, part in cell.cells_and_names() if isinstance(part, bases)]


def _in_code(function: Any, holder: Any, bases: tuple[type, ...]) -> list[type]:  # noqa: ANN401 - anything callable
    """Return the classes of the optimizers that a function's code refers to, directly or through functions it calls."""
    found: list[type] = []
    seen: set[int] = set()
    to_do: list[tuple[Any, Any, int]] = [(function, holder, 0)]
    while to_do:
        thing, holder, depth = to_do.pop()
        if id(thing) in seen or depth > _DEPTH:
            continue
        seen.add(id(thing))
        found.extend(_in_cell(thing, bases))
        inner, holder = _plain_function(thing, holder)
        to_do.extend((other, holder, depth + 1) for other in _referred_to(inner, holder))
    return found


def _plain_function(thing: Any, holder: Any) -> tuple[Any, Any]:  # noqa: ANN401 - anything
    """Return the function inside a bound method, a partial or a decorated function, and the object it is bound to."""
    if isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, types.MethodType):
        thing, holder = thing.__func__, thing.__self__
    return (vars(thing).get("__wrapped__", thing) if isinstance(thing, types.FunctionType) else thing), holder


def _referred_to(function: Any, holder: Any) -> Iterator[Any]:  # noqa: ANN401 - anything
    """Yield the objects that a function's code names: from its closure, its globals, and the object it belongs to.

    MindSpore's own functions are skipped: they refer to no optimizer of the program.
    """
    if not isinstance(function, types.FunctionType) or (function.__module__ or "").startswith("mindspore."):
        return
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell: the variable is not assigned yet
            yield cell.cell_contents
    names = set(_names(function.__code__))
    for places in (function.__globals__, getattr(holder, "__dict__", {}), vars(type(holder))):
        yield from (places[name] for name in names if name in places)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names in a function's code and in the functions defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
