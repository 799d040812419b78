"""Where training steps end in a program that does not say so: when its optimizers have stepped.

Each framework tells in a module of its own when something that
ends a training step has run: an optimizer, a graph with an optimizer in it, a step of a training loop that the
framework brings along.

With one optimizer every step of it ends a training step; gradient accumulation needs nothing more, because the
optimizer steps once in it. With several, the one that steps least often ends the step (the generator of a GAN whose
critic steps five times); where they step equally often, the one that comes last in the order they were first seen in.
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

#: Optimizer steps that are remembered.
_HISTORY = 512
#: One that steps less than once in so many steps of the busiest is no part of the cycle.
_RARE = 50
#: Optimizer steps without the one that ends training steps, after which another one takes its place.
_GONE = 64
_ONE = "each step of the optimizer ends a training step"
_LEAST = "the optimizer that steps least often ends a training step"
_LAST = "optimizers step equally often; the last in their order ends a training step"
_LOOP = "each step of the framework's own training loop is a training step"


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
        if len(self._order) == 1:
            self._closer, self.rule = self._order[0], _ONE
            return
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


@dataclass(frozen=True)
class Stepped:
    """What a framework tells: something that ends a training step, or may, has run.

    Attributes:
        owner: The optimizer, or what holds it; can be referenced weakly.
        name: Class of the optimizer.
        by: How this was seen, in words for the manifest.
        loop: It is the framework's own training loop, whose steps are training steps whatever optimizers do.
        declared: The program itself says that it is a step.
        at_ns: When it ended, of ``time.perf_counter_ns``; 0 means now.
        late: It is told of only now that it is known to have been a step.
    """

    owner: Any
    name: str
    by: str
    loop: bool = False
    declared: bool = False
    at_ns: int = 0
    late: bool = False


class StepHooks(Protocol):
    """Tells of the steps of one framework, which is imported."""

    def install(self, *, late: bool) -> None:
        """Put the hooks in place.

        Args:
            late: The program is in the middle of its training; otherwise it has not made an optimizer yet.
        """
        ...

    def remove(self) -> None:
        """Take the hooks out again; what the program has wrapped around them meanwhile stays, and calls through."""
        ...

    def may_wait(self, steps: int) -> bool:
        """Return whether optimizers exist that have not stepped in the first ``steps`` steps and still may."""
        ...


def make_hooks(framework: str, observe: Callable[[Stepped], None]) -> StepHooks:
    """Return the step hooks of a framework.

    Args:
        framework: Its package, which the program has imported.
        observe: Called in the thread that stepped. It raises nothing but errors of the training itself.
    """
    module, name = FRAMEWORKS[framework].steps
    made: StepHooks = getattr(import_module(module), name)(observe)
    return made


class StepsSeen:
    """What was told of steps so far, and which of them end training steps."""

    def __init__(self) -> None:
        self.finder = StepFinder()
        #: The owners by their keys; these references go when this does, unlike finalizers.
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._known: list[str] = []
        self._by: dict[str, None] = {}
        self._loops: set[int] = set()
        self._declared: set[int] = set()
        #: Keys of owners that were deleted: the callback may run at any moment, so it only leaves a note.
        self._gone: deque[int] = deque()

    def add(self, stepped: Stepped, *, learning: bool) -> bool:
        """Take note of a step and return whether it ends a training step.

        Args:
            stepped: What was told.
            learning: The rule may still change; see :meth:`StepFinder.stepped`.
        """
        while self._gone:
            gone = self._gone.popleft()
            self._owners.pop(gone, None)
            self.finder.forget(gone)
        return self.finder.stepped(self.key(stepped), learning=learning)

    def key(self, stepped: Stepped) -> int:
        """Return the number that stands for the owner as long as it lives."""
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
        """Whether the steps are ``declared`` or ``inferred``, by the rule as it stands."""
        return "declared" if self.finder.closer in self._declared else "inferred"

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest."""
        rule = _LOOP if self._loops and self.finder.closer in (*self._loops, None) else self.finder.rule
        return {"source": self.source, "by": ", ".join(self._by), "optimizers": list(self._known), "rule": rule}


class OptimizerLog:
    """Notes when optimizers stepped during one window, and tells afterwards which training steps that makes.

    For a profile whose program never calls ``step()``.
    """

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []
        self._seen = StepsSeen()
        self._hooks: list[StepHooks] = []
        #: Where steps come from that only the reader of what was recorded finds; empty where there are none.
        self._later = ""

    def install(self) -> None:
        """Begin to note steps in every framework that is imported and can tell."""
        for framework in FRAMEWORKS:
            if framework in sys.modules:
                hooks = make_hooks(framework, self._note)
                hooks.install(late=True)
                self._later = getattr(hooks, "later", self._later)
                self._hooks.append(hooks)

    def remove(self) -> None:
        """Stop noting."""
        while self._hooks:
            self._hooks.pop().remove()

    def forget(self) -> None:
        """Stop noting, and forget what was noted: the program declares its steps."""
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
        """Return how steps were found, for the manifest; empty where there were none."""
        if self._times or not self._later:
            return self._seen.describe() if self._times else {}
        return {"source": "inferred", "by": self._later}

    def _note(self, stepped: Stepped) -> None:
        end = stepped.at_ns or time.perf_counter_ns()
        self._seen.add(stepped, learning=True)
        self._times.append((end, self._seen.key(stepped)))
