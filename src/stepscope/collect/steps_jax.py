"""Steps of JAX: what the program annotates as a step, or the runs of a compiled program that updates its own state.

``jax.profiler.StepTraceAnnotation`` declares steps; of annotations inside each other the outermost counts, and where
there is one, nothing else does.

Without it, a program that is given what it returned (``params = update(params, batch)``) is what an optimizer is
elsewhere. Where no program is, one of the user's that runs again and again is taken, as in inference. Functions of JAX
itself (``jnp.add``, ``jax.random.split``, an operator without ``jit``) are no steps: a program that compiles nothing
declares its steps, or has none.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any

from stepscope.collect.jax_runs import Runs
from stepscope.collect.method_hooks import MethodHooks
from stepscope.collect.steps import Stepped

_LOG = logging.getLogger("stepscope")

#: How steps were found, for the manifest.
BY_ANNOTATIONS = "StepTraceAnnotation"
BY_UPDATES = "runs of compiled programs that update what they are given"
BY_RUNS = "runs of a compiled program"

#: What stands in for the user's function: in a program compiled ahead of time (or a part of a derivative), and in pmap.
_STAND_INS = ("PjitFunction", "_cached_shard_map.<locals>._fun")
#: Runs after which a program that updates nothing is taken where no program does; and in which it may begin to.
_PATIENCE = 8


class TrainingSteps:
    """Calls ``observe`` after everything in JAX that ends a training step.

    Args:
        observe: Called in the thread that stepped. It must not raise.
    """

    def __init__(self, observe: Callable[[Stepped], None]) -> None:
        self._observe = observe
        self._hooks = MethodHooks()
        self._runs = Runs(self._ran)
        self._programs: dict[int, _Program] = {}
        self._annotation: _Annotation | None = None
        self._updating = False
        self._inside = threading.local()

    def install(self, *, late: bool) -> None:
        """Put the hooks into JAX: they hold for what is compiled already, too."""
        del late
        annotation = sys.modules["jax"].profiler.StepTraceAnnotation
        self._hooks.around(annotation, "__enter__", self._enter)
        self._hooks.around(annotation, "__exit__", self._exit)
        self._runs.install()

    def remove(self) -> None:
        """Take the hooks out again; what the program has wrapped around them meanwhile stays, and calls through."""
        self._runs.remove()
        self._hooks.remove()
        self._programs.clear()
        self._annotation = None

    def may_wait(self, steps: int) -> bool:
        """Return False: JAX does not tell of programs that have not run."""
        del steps
        return False

    def _enter(self, original: Callable[..., Any], annotation: Any) -> Any:  # noqa: ANN401 - what JAX returns
        if self._annotation is None:
            self._annotation = _Annotation()
            self._programs.clear()  # and with them goes what was told of them
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        return original(annotation)

    def _exit(self, original: Callable[..., Any], annotation: Any, *error: Any) -> Any:  # noqa: ANN401 - what JAX returns
        result = original(annotation, *error)
        self._inside.depth = getattr(self._inside, "depth", 1) - 1
        if self._inside.depth == 0 and self._annotation is not None and error[:1] == (None,):
            self._observe(Stepped(self._annotation, "", BY_ANNOTATIONS, loop=True, declared=True))
        return result

    def _ran(self, function: Any, inputs: Any, results: Any) -> None:  # noqa: ANN401 - anything
        if self._annotation is not None:
            return
        end = perf_counter_ns()
        program = self._programs.get(id(function))
        if program is None:
            program = self._remember(function)
        if not program.mine or (
            program.runs >= _PATIENCE and not program.told and (self._updating or program.nameless)
        ):
            return
        try:
            self._note(program, inputs, results, end)
        except Exception:  # noqa: BLE001 - law 1: what cannot be looked at is no step
            program.mine = False
            _LOG.debug("stepscope: runs of %s cannot be followed", program.name, exc_info=True)

    def _remember(self, function: Any) -> _Program:  # noqa: ANN401 - anything
        key = id(function)
        program = _Program(function, lambda _: self._programs.pop(key, None))
        self._programs[key] = program
        return program

    def _note(self, program: _Program, inputs: Any, results: Any, end: int) -> None:  # noqa: ANN401 - pytrees
        program.runs += 1
        if program.told:
            self._tell(program, end)
            return
        program.ends.append(end)
        if program.runs <= _PATIENCE and program.given_back(inputs):
            program.updates = True
            if not self._updating:
                self._updating = True
                self._forget_others(program)
        elif self._updating or program.nameless or program.runs < _PATIENCE:
            program.keep(results)
            return
        program.release()
        program.told = True
        ends, program.ends = program.ends, []
        for earlier in ends[:-1]:
            self._tell(program, earlier, late=True)
        self._tell(program, end)

    def _tell(self, program: _Program, end: int, *, late: bool = False) -> None:
        by = BY_UPDATES if program.updates else BY_RUNS
        self._observe(Stepped(program, program.name, by, at_ns=end, late=late))

    def _forget_others(self, program: _Program) -> None:
        """Programs that were taken for want of a better one are none any more."""
        for key, other in list(self._programs.items()):
            if other.told and other is not program:
                del self._programs[key]


class _Annotation:
    """Stands for all annotations of steps."""


class _Program:
    """A jitted function and what is known of its runs.

    Args:
        function: What the user wrote, or what JAX has made of it.
        gone: Called when it has been deleted.

    Attributes:
        mine: Whether its runs may be steps: it is no function of JAX itself, and can be followed.
        nameless: Whether it stands in for a function that may be the user's, or JAX's own.
        runs: How often it has run.
        updates: Whether it was given what it had returned.
        told: Whether its runs are told of as steps.
        ends: When the runs that nobody was told of ended.
    """

    def __init__(self, function: Any, gone: Callable[[Any], object]) -> None:  # noqa: ANN401 - anything
        self.name = str(getattr(function, "__name__", "") or type(function).__name__)
        self.nameless = getattr(function, "__qualname__", self.name) in _STAND_INS
        self.mine = self.nameless or not _of_jax(function)
        self.runs = 0
        self.updates = self.told = False
        self.ends: list[int] = []
        self._returned: dict[int, weakref.ref[Any]] = {}
        try:
            self._function: Any = weakref.ref(function, gone)
        except TypeError:  # kept alive, so that its number stays its own
            self._function = function

    def keep(self, results: Any) -> None:  # noqa: ANN401 - a pytree
        """Remember what was returned, without keeping it alive."""
        self._returned = {id(leaf): weakref.ref(leaf) for leaf in _arrays(results)}

    def given_back(self, inputs: Any) -> bool:  # noqa: ANN401 - a pytree
        """Return whether something in ``inputs`` was returned by the last run."""
        known = self._returned
        return any((found := known.get(id(leaf))) is not None and found() is leaf for leaf in _arrays(inputs))

    def release(self) -> None:
        """Forget what was returned."""
        self._returned = {}


def _of_jax(function: Any) -> bool:  # noqa: ANN401 - anything
    module = str(getattr(function, "__module__", None) or "jax.")
    return f"{module}.".startswith(("jax.", "jaxlib."))


def _arrays(tree: Any) -> Iterable[Any]:  # noqa: ANN401 - a pytree
    jax = sys.modules["jax"]
    return (leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, jax.Array))
