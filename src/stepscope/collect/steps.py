"""Infer the ends of training steps from the steps of optimizers, for programs that do not declare them.

The step hooks of each framework report events that may end a training step: a step of an optimizer, a run of a graph
that contains an optimizer, a step of the framework's own training loop.

With one optimizer, each of its steps ends a training step; this covers gradient accumulation, in which the optimizer
steps once. With several, a training step is an iteration of the loop that they share (:mod:`.loops`): of those that are
in no loop of their own, the one that steps most often ends it. If that is unknown, the one that steps least often does
(the generator of a GAN whose critic steps five times). If they step equally often, the one whose first step came last
ends it.

Where a framework cannot tell optimizers from other programs that run again and again, its reports have ranks, of which
only the highest counts.

The rule is learnt while the program trains. If it changes, the steps up to then are counted anew.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, Protocol

from stepscope.collect.frameworks import FRAMEWORKS
from stepscope.collect.loops import CallPath, call_path, repeats_without

#: Steps of the first optimizer during which another one may make its first step and count from the beginning on, and
#: those for which the first window waits for it: some critics step eight times before their generator does.
PATIENCE, AWAITED = 20, 10
#: Latest optimizer steps of which it is known whose they were; steps of one optimizer whose ends are kept.
_HISTORY, _ENDS = 512, 1 << 14
#: An optimizer that steps less than once in this many steps of the busiest one does not belong to the cycle.
_RARE = 50
#: Optimizer steps in a row without the closing optimizer, after which it counts as gone and another one closes.
_GONE = 64
#: Steps of each optimizer of the cycle from which the rule is settled, and places in the code that are kept of each.
_SETTLED, _PLACES = 4, 4
_ONE = "each step of the optimizer ends a training step"
_LEAST = "the optimizer that steps least often ends a training step"
_MOST = "an optimizer that steps in each iteration of the loop ends a training step"
_LAST = "optimizers step equally often; the last in their order ends a training step"
_LOOP = "each step of the framework's own training loop is a training step"


class StepFinder:
    """Learns from a sequence of optimizer steps which of them end training steps.

    An optimizer is identified by any hashable key.
    """

    def __init__(self) -> None:
        self._history: deque[object] = deque(maxlen=_HISTORY)
        self._ends: dict[object, array[int]] = {}
        self._counts: Counter[object] = Counter()
        self._order: list[object] = []
        self._paths: dict[object, list[CallPath]] = {}
        #: Optimizer → training steps, by the rule then, before its first step.
        self._begun: dict[object, int] = {}
        self._ranks: dict[object, int] = {}
        self._rank = 0
        self._outranked: set[object] = set()
        self._recurred = True
        self._sure = False
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

    def stepped(
        self,
        optimizer: object,
        *,
        learning: bool,
        end_ns: int = 0,
        path: Callable[[], CallPath] = tuple,
        rank: int = 0,
    ) -> bool:
        """Count a step of ``optimizer`` and return whether it ends a training step.

        Args:
            optimizer: Its key.
            learning: Whether the rule may still change; if not, it changes only when the closing optimizer is gone.
            end_ns: When the step ended, of ``time.perf_counter_ns``.
            path: Returns where the call stands; called only while the rule is learnt.
            rank: Of optimizers of several ranks, those of the highest one count.
        """
        if rank < self._rank:
            return False
        self._ranks[optimizer] = rank
        if learning and (highest := max(self._ranks.values())) > self._rank:
            self._outrank(highest)
            if rank < highest:
                return False
        if optimizer not in self._counts:
            self._order.append(optimizer)
            self._begun[optimizer] = self.number
            self._recurred = self._sure = False
        self._counts[optimizer] += 1
        self._recurred = self._recurred or optimizer == self._closer
        self._history.append(optimizer)
        ends = self._ends.setdefault(optimizer, array("q"))
        if len(ends) < _ENDS:
            ends.append(end_ns)
        self._absent = 0 if optimizer == self._closer else self._absent + 1
        if self._closer is None or self._absent > _GONE or (learning and not self._sure):
            places = self._paths.setdefault(optimizer, [])
            if len(places) < _PLACES and (place := path()) and place not in places:
                places.append(place)
            self._learn()
            self._sure = min(self._cycle().values(), default=0) > _SETTLED
        return optimizer == self._closer

    def ends_ns(self) -> list[int]:
        """Return when the steps up to now ended, by the current rule; nothing if there are too many."""
        ends = self._ends.get(self._closer, ())
        return list(ends) if len(ends) == self.number else []

    def conclude(self) -> bool:
        """At the end of the program: return whether its last steps were a stage of their own, in which others step.

        Else their optimizers, which have only stepped since the closing one did last, would never count.
        """
        history = list(self._history)
        last = set(history[-self._absent :])
        if self._absent <= _SETTLED or last.intersection(history[: -self._absent]):
            return False
        self._leave_stage()
        self._learn()
        return True

    def counts_with(self, optimizer: object) -> bool:
        """Return whether another optimizer and the closing one step in turn from the beginning on.

        Steps of an optimizer that is gone, or that trained alone for long, were training steps; those of a lower rank
        were none.
        """
        if optimizer in self._outranked:
            return True
        return optimizer in self._counts and self._begun.get(self._closer, 0) <= PATIENCE

    def forget(self, optimizer: object) -> None:
        """Remove an optimizer that was deleted from the cycle."""
        self._paths.pop(optimizer, None)
        self._ends.pop(optimizer, None)
        self._ranks.pop(optimizer, None)
        self._sure = False
        if self._counts.pop(optimizer, None) is not None:
            self._order.remove(optimizer)
        if optimizer == self._closer:
            self._closer = None

    def _outrank(self, rank: int) -> None:
        """Take the optimizers of lower ranks from the cycle."""
        self._rank = rank
        for lower in [optimizer for optimizer in self._order if self._ranks[optimizer] < rank]:
            self._outranked.add(lower)
            self.forget(lower)
        if self._closer is None and self._order:
            self._learn()

    def _cycle(self) -> dict[object, int]:
        """Return the optimizers that recur, and how often each has stepped."""
        # An optimizer that stepped once has not recurred; it counts only if it is the latest to appear.
        counts = {name: count for name, count in self._counts.items() if count > 1 or name == self._order[-1]}
        most = max(counts.values())
        return {name: count for name, count in counts.items() if count * _RARE >= most}

    def _learn(self) -> None:
        if len(self._order) == 1:
            self._closer, self.rule = self._order[0], _ONE
            return
        if not self._recurred and self._absent <= _GONE and self._counts[self._closer] > _SETTLED:
            return  # perhaps another stage of the program has begun, in which the closing optimizer does not step
        if self._absent > _GONE:
            self._leave_stage()
        counts = self._cycle()
        fewest, most = min(counts.values()), max(counts.values())
        once = {name: count for name, count in counts.items() if self._once_an_iteration(name, counts)}
        # In the middle of an iteration, one of two that step equally often is a step ahead.
        least = max(once.values()) - 1 if once else fewest
        chosen = once or {name: count for name, count in counts.items() if count == fewest}
        self._closer = [name for name in self._order if chosen.get(name, least - 1) >= least][-1]
        if len(counts) == 1:
            self.rule = _ONE
        elif once:
            self.rule = _LAST if most - fewest <= 1 else _MOST if least > fewest else _LEAST
        else:
            self.rule = _LEAST if most > fewest else _LAST

    def _leave_stage(self) -> None:
        """Forget the optimizers that have not stepped since the closing one did last."""
        recent = set(list(self._history)[-self._absent :])
        for gone in [optimizer for optimizer in self._order if optimizer not in recent]:
            self.forget(gone)
        self._absent = 0

    def _once_an_iteration(self, optimizer: object, cycle: Iterable[object]) -> bool:
        """Return whether an optimizer steps at one place, in no loop that another one of the cycle is not in."""
        places = self._paths.get(optimizer, [])
        others = [path for other in cycle if other != optimizer for path in self._paths.get(other, [])]
        return len(places) == 1 and bool(others) and not any(repeats_without(places[0], other) for other in others)


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
        rank: Reports of a higher rank show that those of lower ones end no training steps.
        rule: Why it ends a training step, if no optimizer has stepped, in words for the manifest.
    """

    owner: Any
    name: str
    by: str
    loop: bool = False
    declared: bool = False
    at_ns: int = 0
    late: bool = False
    rank: int = 0
    rule: str = ""


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

    def may_wait(self, steps: int) -> str:
        """Return the class of an optimizer that did not step in the first ``steps`` steps but still may; else ""."""
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


class Gradients:
    """Reports computations of gradients as steps, in a program that updates its parameters itself.

    Such a program constructs no optimizer. The first :data:`PATIENCE` computations do not count: an optimizer may still
    be made.

    Args:
        observe: Called with the report of each further one.
        by: What computes them, for the manifest.
        framework: Whose optimizers the program does not use.
        optimizers: Returns whether there are any; called once, when the patience ends.
    """

    def __init__(
        self, observe: Callable[[Stepped], None], by: str, framework: str, optimizers: Callable[[], bool] = bool
    ) -> None:
        self._observe, self._optimizers = observe, optimizers
        rule = f"the program has no optimizer of {framework}; each computation of gradients ends a training step"
        self._step = Stepped(self, "", by, rule=rule)
        self._left = PATIENCE
        self._counts = False

    def computed(self) -> None:
        """Count a computation, which has ended."""
        if self._counts:
            self._observe(self._step)
        elif self._left:
            self._left -= 1
            self._counts = self._left == 0 and not self._optimizers()


class StepsSeen:
    """The reports of step hooks so far, and which of them end training steps."""

    def __init__(self) -> None:
        self.finder = StepFinder()
        #: Key and weak reference of each owner by its ``id``, which a later object may have once the owner is deleted.
        #: Not finalizers: those would outlive this object.
        self._owners: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._keys = itertools.count()
        self._known: list[str] = []
        self._by: dict[str, None] = {}
        self._loops: set[int] = set()
        self._declared: set[int] = set()
        self._rules: dict[object, str] = {}
        #: Class of each owner, and where it first stepped.
        self._places: dict[int, tuple[str, CallPath]] = {}
        self._renewed = 0
        #: Keys of deleted owners. A weak reference's callback runs on any thread at any bytecode, so it only appends
        #: here (deque.append is atomic under the GIL); :meth:`key` removes them.
        self._gone: deque[int] = deque()

    def add(self, stepped: Stepped, *, learning: bool) -> bool:
        """Count a step and return whether it ends a training step.

        Args:
            stepped: The report.
            learning: See :meth:`StepFinder.stepped`.
        """
        end_ns = stepped.at_ns or time.perf_counter_ns()
        key = self.key(stepped)
        return self.finder.stepped(key, learning=learning, end_ns=end_ns, path=call_path, rank=stepped.rank)

    def key(self, stepped: Stepped) -> int:
        """Return the number that identifies the owner, and no other object before or after it.

        An optimizer that the program makes anew in each step takes over the number of the one that was deleted; those
        that were deleted with it may be made anew, too.
        """
        identity, gone = id(stepped.owner), self._gone
        key, owner = self._owners.get(identity, (-1, None))
        if owner is None or owner() is not stepped.owner:
            key = self._new_key(stepped)
            owner = weakref.ref(stepped.owner, lambda _, key=key: gone.append(key))  # type: ignore[misc]
            self._owners[identity] = (key, owner)
        else:
            self._forget_gone()
        return key

    def _new_key(self, stepped: Stepped) -> int:
        """Return the number of an owner that steps for the first time."""
        place = (stepped.name, call_path())
        with suppress(IndexError):  # another thread may take what is left
            for _ in range(len(self._gone)):  # no iteration: a deletion may add to it at any time
                key = self._gone.popleft()
                if self._places.get(key) == place:
                    self._renewed += 1
                    return key
                self._gone.append(key)
        self._forget_gone()
        key = next(self._keys)
        self._places[key] = place
        self._known += [stepped.name] if stepped.name else []
        self._by[stepped.by] = None
        if stepped.loop:
            self._loops.add(key)
        if stepped.declared:
            self._declared.add(key)
        if stepped.rule:
            self._rules[key] = stepped.rule
        return key

    def _forget_gone(self) -> None:
        while self._gone:
            key = self._gone.popleft()
            self._places.pop(key, None)
            self.finder.forget(key)

    @property
    def source(self) -> str:
        """Whether the steps are ``declared`` or ``inferred``, by the current rule."""
        return "declared" if self.finder.closer in self._declared else "inferred"

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest; ``renewed`` if an optimizer is made anew for most of them."""
        rule = _LOOP if self._loops and self.finder.closer in (*self._loops, None) else self.finder.rule
        rule = self._rules.get(self.finder.closer, rule)
        renewed = {"renewed": True} if self._renewed > max(_SETTLED, self.finder.number / 2) else {}
        found = {"source": self.source, "by": ", ".join(self._by), "optimizers": list(self._known), "rule": rule}
        return found | renewed


class OptimizerLog:
    """Records when optimizers stepped during one window, and derives the training steps at its end.

    For a profile whose program never calls ``step()``.
    """

    def __init__(self) -> None:
        #: Returns the time and a reading of the calling thread, which :meth:`steps` returns with the steps.
        self.read: Callable[[], tuple[int, Any]] = lambda: (time.perf_counter_ns(), None)
        self._times: list[tuple[int, Any, int]] = []
        self._begun: Any = None
        self._seen = StepsSeen()
        self._hooks: list[StepHooks] = []
        self._watched: set[str] = set()
        #: Source of the steps, if the reader of the capture infers them instead of a framework's hooks; else empty.
        self._later = ""

    def install(self) -> None:
        """Begin, with the step hooks of every framework that the program has imported."""
        self._begun = self.read()[1]
        self.admit()

    def admit(self) -> None:
        """Install the step hooks of the frameworks that the program has imported since."""
        for framework in FRAMEWORKS:
            if framework in sys.modules and framework not in self._watched:
                self._watched.add(framework)
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
    def found(self) -> bool:
        """Whether steps were found, or the reader of the capture may find some."""
        return bool(self._times or self._later)

    @property
    def source(self) -> str:
        """Whether the steps are ``declared`` or ``inferred``."""
        return self._seen.source

    @property
    def ended(self) -> int:
        """How many training steps have ended."""
        return len(self.steps(0))

    def steps(self, start_ns: int) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
        """Return start and end of each training step since ``start_ns``, each a time and a reading of :attr:`read`."""
        closer = self._seen.finder.closer
        ends = [(end, reading) for end, reading, key in self._times if key == closer]
        return list(pairwise([(start_ns, self._begun), *ends]))

    def describe(self) -> dict[str, Any]:
        """Return how steps were found, for the manifest; empty without steps."""
        if self._times or not self._later:
            return self._seen.describe() if self._times else {}
        return {"source": "inferred", "by": self._later}

    def _note(self, stepped: Stepped) -> None:
        now, reading = self.read()
        self._seen.add(stepped, learning=True)
        self._times.append((stepped.at_ns or now, reading, self._seen.key(stepped)))
