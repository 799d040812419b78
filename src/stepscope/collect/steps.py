"""Infer the ends of training steps from the steps of optimizers, for programs that do not declare them.

The step hooks of each framework report events that may end a training step: a step of an optimizer, a run of a graph
that contains an optimizer, a step of the framework's own training loop.

With one optimizer, each of its steps ends a training step; this covers gradient accumulation, in which the optimizer
steps once. With several, the one that steps least often ends the step (the generator of a GAN whose critic steps five
times). If they step equally often, the one whose first step came last ends it.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

from stepscope.collect.frameworks import FRAMEWORKS

#: Number of latest optimizer steps to learn the rule from.
_HISTORY = 512
#: An optimizer that steps less than once in this many steps of the busiest one does not belong to the cycle.
_RARE = 50
#: Optimizer steps in a row without the closing optimizer, after which it counts as gone and another one closes.
_GONE = 64
_ONE = "each step of the optimizer ends a training step"
_LEAST = "the optimizer that steps least often ends a training step"
_LAST = "optimizers step equally often; the last in their order ends a training step"
_LOOP = "each step of the framework's own training loop is a training step"


class StepFinder:
    """Learns from a sequence of optimizer steps which of them end training steps.

    An optimizer is identified by any hashable key.
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
        """Training steps so far, by the current rule."""
        return self._counts[self._closer]

    @property
    def closer(self) -> object:
        """Key of the closing optimizer, whose steps end training steps, by the current rule."""
        return self._closer

    @property
    def optimizers(self) -> int:
        """Number of optimizers that have stepped so far."""
        return len(self._order)

    def stepped(self, optimizer: object, *, learning: bool) -> bool:
        """Count a step of ``optimizer`` and return whether it ends a training step.

        Args:
            optimizer: Its key.
            learning: Whether the rule may still change; if not, it changes only when the closing optimizer is gone.
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
        """Remove an optimizer that was deleted from the cycle."""
        if self._counts.pop(optimizer, None) is not None:
            self._order.remove(optimizer)
        if optimizer == self._closer:
            self._closer = None

    def _learn(self) -> None:
        if len(self._order) == 1:
            self._closer, self.rule = self._order[0], _ONE
            return
        if self._absent > _GONE:
            recent = set(list(self._history)[-self._absent :])
            for gone in [optimizer for optimizer in self._order if optimizer not in recent]:
                self.forget(gone)
            self._absent = 0
        # An optimizer that stepped once has not recurred; it counts only if it is the latest to appear.
        counts = {name: count for name, count in self._counts.items() if count > 1 or name == self._order[-1]}
        most = max(counts.values())
        fewest = min(count for count in counts.values() if count * _RARE >= most)
        self._closer = [optimizer for optimizer in self._order if counts.get(optimizer) == fewest][-1]
        self.rule = _ONE if len(counts) == 1 else _LEAST if most > fewest else _LAST


@dataclass(frozen=True)
class Stepped:
    """Report of a framework's step hooks: an event that ends a training step, or may end one.

    Attributes:
        owner: The optimizer, or the object that contains it; weakly referable.
        name: Class of the optimizer.
        by: How the hooks found it, in words for the manifest.
        loop: It is a step of the framework's own training loop, so a training step whatever its optimizers do.
        declared: The program declares it as a step.
        at_ns: Its end, of ``time.perf_counter_ns``; 0 means now.
        late: Reported later than it ended, because only later events showed that it is a step.
    """

    owner: Any
    name: str
    by: str
    loop: bool = False
    declared: bool = False
    at_ns: int = 0
    late: bool = False


class StepHooks(Protocol):
    """Hooks that report the steps of one framework, which the program has imported."""

    def install(self, *, late: bool) -> None:
        """Install the hooks.

        Args:
            late: Whether the program may already train; if not, it has not constructed an optimizer yet.
        """
        ...

    def remove(self) -> None:
        """Remove the hooks; a wrapper that the program has put around a hook stays, and calls the original."""
        ...

    def may_wait(self, steps: int) -> bool:
        """Return whether an optimizer exists that did not step in the first ``steps`` steps but still may."""
        ...


def make_hooks(framework: str, observe: Callable[[Stepped], None]) -> StepHooks:
    """Return the step hooks of a framework.

    Args:
        framework: Its package, which the program has imported.
        observe: Called on the thread that stepped; raises only errors of the training itself.
    """
    module, name = FRAMEWORKS[framework].steps
    made: StepHooks = getattr(import_module(module), name)(observe)
    return made


class StepsSeen:
    """The reports of step hooks so far, and which of them end training steps."""

    def __init__(self) -> None:
        self.finder = StepFinder()
        #: Weak references to the owners by key. Not finalizers: those would outlive this object.
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._known: list[str] = []
        self._by: dict[str, None] = {}
        self._loops: set[int] = set()
        self._declared: set[int] = set()
        #: Keys of deleted owners. A weak reference's callback runs on any thread at any bytecode, so it only appends
        #: here (deque.append is atomic under the GIL); :meth:`add` removes them.
        self._gone: deque[int] = deque()

    def add(self, stepped: Stepped, *, learning: bool) -> bool:
        """Count a step and return whether it ends a training step.

        Args:
            stepped: The report.
            learning: See :meth:`StepFinder.stepped`.
        """
        while self._gone:
            gone = self._gone.popleft()
            self._owners.pop(gone, None)
            self.finder.forget(gone)
        return self.finder.stepped(self.key(stepped), learning=learning)

    def key(self, stepped: Stepped) -> int:
        """Return the number that identifies the owner during its lifetime."""
        key = id(stepped.owner)
        if key not in self._owners:
            gone = self._gone
            self._owners[key] = weakref.ref(stepped.owner, lambda _, key=key: gone.append(key))  # type: ignore[misc]
            self._known += [stepped.name] if stepped.name else []
            self._by[stepped.by] = None
            if stepped.loop:
                self._loops.add(key)
            if stepped.declared:
                self._declared.add(key)
        return key

    @property
    def source(self) -> str:
        """Whether the steps are ``declared`` or ``inferred``, by the current rule."""
        return "declared" if self.finder.closer in self._declared else "inferred"

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest."""
        rule = _LOOP if self._loops and self.finder.closer in (*self._loops, None) else self.finder.rule
        return {"source": self.source, "by": ", ".join(self._by), "optimizers": list(self._known), "rule": rule}


class OptimizerLog:
    """Records when optimizers stepped during one window, and derives the training steps at its end.

    For a profile whose program never calls ``step()``.
    """

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []
        self._seen = StepsSeen()
        self._hooks: list[StepHooks] = []
        #: Source of the steps, if the reader of the capture infers them instead of a framework's hooks; else empty.
        self._later = ""

    def install(self) -> None:
        """Install the step hooks of every framework that the program has imported."""
        for framework in FRAMEWORKS:
            if framework in sys.modules:
                hooks = make_hooks(framework, self._note)
                hooks.install(late=True)
                self._later = getattr(hooks, "later", self._later)
                self._hooks.append(hooks)

    def remove(self) -> None:
        """Remove the hooks."""
        while self._hooks:
            self._hooks.pop().remove()

    def forget(self) -> None:
        """Remove the hooks and drop their reports, because the program declares its steps."""
        self.remove()
        self._times.clear()
        self._later = ""

    @property
    def source(self) -> str:
        """Whether the steps are ``declared`` or ``inferred``."""
        return self._seen.source

    def steps(self, start_ns: int) -> list[tuple[int, int]]:
        """Return start and end of each training step since ``start_ns``, times of ``time.perf_counter_ns``."""
        closer = self._seen.finder.closer
        return list(pairwise([start_ns, *(end for end, key in self._times if key == closer)]))

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest; empty without steps."""
        if self._times or not self._later:
            return self._seen.describe() if self._times else {}
        return {"source": "inferred", "by": self._later}

    def _note(self, stepped: Stepped) -> None:
        end = stepped.at_ns or time.perf_counter_ns()
        self._seen.add(stepped, learning=True)
        self._times.append((end, self._seen.key(stepped)))
