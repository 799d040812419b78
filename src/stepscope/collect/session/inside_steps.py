"""What steps contain besides the training: evaluations, checkpoints, logging, collections of garbage.

Hooks around the frameworks' own functions, from the first step of a run to its end, also outside windows. Each is
called seldom, or costs less than a microsecond; what takes less than :data:`_LEAST_NS` is not kept.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial, wraps
from time import perf_counter_ns
from typing import Any, NamedTuple

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.post_import import when_imported
from stepscope.collect.host.data_waits import iterators_of

_LOG = logging.getLogger("stepscope")

#: So many evaluations in a row that last to the end of a step are none: a copy of the network was switched.
_LASTS = 3
#: Shorter events explain no step.
_LEAST_NS = 100_000


#: Called with the time, of ``time.perf_counter_ns``, from which on a step evaluates what is trained, the end of
#: that step, and with file and name of the function that evaluates, empty where the training is in it, too.
evaluations: list[Callable[[int, int, str, str], None]] = []


class _Named(NamedTuple):
    """Functions whose calls have a name in a step.

    Attributes:
        name: The name.
        awaited: Module after whose import they are there.
        places: Modules and classes that hold the function: ``module`` or ``module:Class``.
        functions: Names of the functions.
        beside: Whether the library calls them on threads of its own, too: only calls of the main thread count.
    """

    name: str
    awaited: str
    places: tuple[str, ...]
    functions: tuple[str, ...]
    beside: bool = False


_WRITER = ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure", "flush")
_ORBAX = ("orbax.checkpoint:Checkpointer", "orbax.checkpoint:AsyncCheckpointer", "orbax.checkpoint:CheckpointManager")
_ORBAX_NEW = "orbax.checkpoint.experimental.v1"
_ORBAX_SAVES = tuple(f"save{what}{how}" for what in ("", "_pytree", "_checkpointables") for how in ("", "_async"))
_MINDSPORE_SAVES = ("mindspore", "mindspore.train", "mindspore.train.serialization", "mindspore.train.model")
_PADDLE_SAVES = ("paddle", "paddle.framework", "paddle.framework.io")
_NAMED = (
    _Named("checkpoint", "torch", ("torch",), ("save",)),
    _Named("checkpoint", "torch.distributed.checkpoint", ("torch.distributed.checkpoint",), ("save",)),
    _Named("checkpoint", "safetensors.torch", ("safetensors.torch",), ("save_file", "save_model")),
    _Named("logging", "torch.utils.tensorboard", ("torch.utils.tensorboard.writer:SummaryWriter",), _WRITER),
    _Named(
        "checkpoint",
        "mindspore",
        (*_MINDSPORE_SAVES, "mindspore.train.callback._checkpoint"),
        ("save_checkpoint",),
    ),
    _Named("evaluation", "mindspore", ("mindspore.train.model:Model",), ("eval", "_eval_in_fit")),
    _Named("checkpoint", "paddle", (*_PADDLE_SAVES, "paddle.static", "paddle.static.io"), ("save",)),
    _Named("checkpoint", "paddle", ("paddle.hapi.model:Model",), ("save",)),
    _Named("evaluation", "paddle", ("paddle.hapi.model:Model",), ("evaluate",)),
    _Named("checkpoint", "flax.training.checkpoints", ("flax.training.checkpoints",), ("save_checkpoint",)),
    _Named("checkpoint", "orbax.checkpoint", _ORBAX, ("save",)),
    _Named("checkpoint", "orbax.checkpoint", _ORBAX, ("wait_until_finished",), beside=True),
    _Named("checkpoint", _ORBAX_NEW, (_ORBAX_NEW, f"{_ORBAX_NEW}.training:Checkpointer"), _ORBAX_SAVES),
    _Named("logging", "wandb.sdk.wandb_run", ("wandb.sdk.wandb_run:Run",), ("log",)),
    _Named("logging", "tensorboardX.writer", ("tensorboardX.writer:SummaryWriter",), _WRITER),
)
#: Module, class, and the methods that switch to evaluation and back; the first takes or implies ``mode=False``.
_SWITCHES = (
    ("torch", "torch.nn.modules.module", "Module", ("eval", "train")),
    ("mindspore", "mindspore.nn.cell", "Cell", ("set_train", "set_train")),
    ("paddle", "paddle.nn.layer.layers", "Layer", ("eval", "train")),
)
#: Awaited module, the module that then holds the classes, and classes of the iterators that batches are taken from.
_ITERATORS = (
    ("torch.utils.data.dataloader", "torch.utils.data.dataloader", ("_BaseDataLoaderIter",)),
    ("mindspore.dataset.engine.iterators", "mindspore.dataset.engine.iterators", ("Iterator",)),
    (
        "paddle.io.dataloader.dataloader_iter",
        "paddle.io.dataloader.dataloader_iter",
        ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess"),
    ),
    ("grain._src.python.load", "grain", ("DataLoaderIterator", "DatasetIterator")),
)


class InsideSteps:
    """Reports what happens inside steps.

    Args:
        happened: Called with a name, and start and end of ``time.perf_counter_ns``.
        waited: Called with the ns of a wait for the next batch, and how many batches stood ready, None if unknown.

    Attributes:
        evaluating: When the evaluation began that has not ended; 0 without one.
        lasted: How many evaluations in a row have lasted to the end of their step.
        announced: What the program itself says it does, and since when; the hooks of that name then say nothing.
    """

    def __init__(self, happened: Callable[[str, int, int], None], waited: Callable[[int, int | None], None]) -> None:
        self._happened = happened
        self._waited = waited
        self._hooks = MethodHooks()
        self._withdraw: list[Callable[[], None]] = []
        self._busy = threading.local()
        self.evaluating = 0
        self.announced: tuple[str, int] | None = None
        self._collecting = 0
        self._freezing = False
        self.lasted = 0

    def install(self) -> None:
        """Put the hooks into what is imported, and into the rest when it is."""
        for named in _NAMED:
            self._await(named.awaited, partial(self._name, named))
        for awaited, module, owner, methods in _SWITCHES:
            self._await(awaited, partial(self._watch_switch, module, owner, methods))
        for awaited, module, classes in _ITERATORS:
            self._await(awaited, partial(self._watch_iterators, module, classes))

    def first_step(self) -> None:
        """Watch the garbage collector, too; before the first step, its callbacks are the program's alone."""
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        """Remove all hooks; idempotent."""
        while self._withdraw:
            self._withdraw.pop()()
        self._hooks.remove()
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def step_ended(self, end_ns: int) -> None:
        """Note the end of a step: the program trains, in evaluation mode if that has not ended."""
        if self.evaluating:
            self.lasted += 1
        elif self.lasted < _LASTS:
            self.lasted = 0
        self.training_goes_on(end_ns)

    def training_goes_on(self, end_ns: int) -> None:
        """End the evaluation and what is announced, if any: the program trains, perhaps without having said so."""
        start_ns, self.evaluating = self.evaluating, 0
        announced, self.announced = self.announced, None
        if announced is not None:
            self._happened(*announced, end_ns)  # however short: the program says so
        elif start_ns:
            self._tell("evaluation", start_ns, end_ns)

    def announce(self, name: str | None) -> None:
        """Note that the program begins something other than training; None ends it."""
        start_ns = now_ns = perf_counter_ns()
        if name == "evaluation" and self.evaluating:  # the same one, whose model has switched already
            start_ns, self.evaluating = self.evaluating, 0
        self.training_goes_on(now_ns)
        self.announced = None if name is None else (name, start_ns)

    def _await(self, module: str, action: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - law 1: this name is not known; the program goes on
                _LOG.debug("stepscope: nothing in %s is named in steps: %s", module, error)

        self._withdraw.append(when_imported(module, guarded))

    def _name(self, named: _Named) -> None:
        for place in named.places:
            module, _, owner = place.partition(":")
            holder: Any = sys.modules.get(module)
            holder = getattr(holder, owner, None) if owner else holder
            for function in named.functions:
                if holder is not None and hasattr(holder, function):
                    timed = self._evaluated if named.name == "evaluation" else partial(self._timed, named.name)
                    timed = partial(_on_main_thread, timed) if named.beside else timed
                    self._hooks.around(holder, function, timed)

    def _timed(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        announced = self.announced is not None and self.announced[0] == name
        if announced or getattr(self._busy, "name", None) == name:  # a function calls another of the same name
            return original(*args, **kwargs)
        outer, self._busy.name = getattr(self._busy, "name", None), name
        start_ns = perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            self._busy.name = outer
            self._tell(name, start_ns, perf_counter_ns())

    def _evaluated(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Announce an evaluation: its switches and its waits for batches are parts of it."""
        if self.announced is not None:
            return original(*args, **kwargs)
        self.announce("evaluation")
        try:
            return original(*args, **kwargs)
        finally:
            self.announce(None)

    def _tell(self, name: str, start_ns: int, end_ns: int) -> None:
        if end_ns - start_ns >= _LEAST_NS:
            self._happened(name, start_ns, end_ns)

    def _watch_switch(self, module: str, owner: str, methods: tuple[str, str]) -> None:
        kind = getattr(sys.modules[module], owner)
        for method in dict.fromkeys(methods):
            original = getattr(kind, method)
            self._hooks.put(kind, method, self._switch(original, trains=method != "eval"))

    def _switch(self, original: Callable[..., Any], *, trains: bool) -> Callable[..., Any]:
        """Return a method that switches between evaluation and training; PyTorch's calls itself for each submodule."""

        @wraps(original)
        def switch(module: Any, *mode: Any, **named: Any) -> Any:  # noqa: ANN401 - those of the method
            on = trains and all(mode) and all(named.values())
            if self.announced is not None or self._freezing:
                return original(module, *mode, **named)
            if on:
                self.lasted = 0
                if self.evaluating:
                    self.training_goes_on(perf_counter_ns())
            elif not self.evaluating and self.lasted < _LASTS:
                if _is_frozen(module):
                    return self._freeze(original, module, *mode, **named)
                self.evaluating = perf_counter_ns()
            return original(module, *mode, **named)

        return switch

    def _freeze(self, original: Callable[..., Any], *args: Any, **named: Any) -> Any:  # noqa: ANN401
        self._freezing = True
        try:
            return original(*args, **named)
        finally:
            self._freezing = False

    def _watch_iterators(self, module: str, classes: tuple[str, ...]) -> None:
        for kind in iterators_of(module, classes):
            self._hooks.around(kind, "__next__", self._next)

    def _next(self, original: Callable[..., Any], iterator: Any) -> Any:  # noqa: ANN401 - a batch
        if getattr(self._busy, "loading", False):  # a loader takes from another one
            return original(iterator)
        self._busy.loading = True
        ready = ready_batches(iterator)
        start_ns = perf_counter_ns()
        try:
            return original(iterator)
        finally:
            self._busy.loading = False
            if not self.evaluating and self.announced is None:
                self._waited(perf_counter_ns() - start_ns, ready)

    def _collected(self, moment: str, info: dict[str, int]) -> None:
        # Lock-free: it runs inside any allocation of any thread.
        if info["generation"] < 2:
            return
        if moment == "start":
            self._collecting = perf_counter_ns()
            return
        start_ns, self._collecting = self._collecting, 0
        if start_ns:
            self._tell("garbage collection", start_ns, perf_counter_ns())


def _on_main_thread(timed: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    on_main = threading.current_thread() is threading.main_thread()
    return timed(original, *args, **kwargs) if on_main else original(*args, **kwargs)


def ready_batches(iterator: Any) -> int | None:  # noqa: ANN401 - a framework's iterator
    """Return how many batches the workers of a loader have ready; None without workers, or if unknown.

    A task of PyTorch that has been received, but whose turn has not come, holds its batch. Paddle notes the structure
    of each batch that it has received, up to when the batch is asked for.
    """
    try:
        if hasattr(iterator, "_structure_infos"):
            return len(iterator._structure_infos) if iterator._num_workers else None
        return int(iterator._data_queue.qsize()) + sum(len(task) > 1 for task in list(iterator._task_info.values()))
    except Exception:  # noqa: BLE001 - law 1: no workers, another version, or a system without `qsize`
        return None


def _is_frozen(module: Any) -> bool:  # noqa: ANN401 - a module of PyTorch; those of other frameworks are not looked at
    """Return whether a network trains with this part of it in evaluation mode: one without parameters to train."""
    try:
        parameters = module.parameters()
        return next(iter(parameters)).requires_grad is False and not any(one.requires_grad for one in parameters)
    except Exception:  # noqa: BLE001 - law 1: the program's own class
        return False
