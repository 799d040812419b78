"""Steps of JAX: what the program annotates as a step, or the runs of a compiled program that updates its own state.

``jax.profiler.StepTraceAnnotation`` declares steps; of nested annotations the outermost counts, and from the first one
on nothing else does.

Without annotations, a compiled program that gets its own results back (``params = update(params, batch)``) counts as an
optimizer. Where one of them computes a gradient, or its results go to a program that does, the others do not train (the
steps of a simulated environment, the sum of gradients of single samples) and do not count. If none gets its results
back, a program of the user's that runs repeatedly counts, as in inference; and so does a gradient (``jax.grad``,
``jax.value_and_grad``) that is computed outside of ``jit``, in a training that compiles nothing. Functions of JAX
itself (``jnp.add``, ``jax.random.split``, an operator without ``jit``) never count. Those of installed packages, such
as what optax jits for itself, count by their runs only in a program that jits nothing itself.

A program that is given what a training one returned, draws no random numbers, and gives the training nothing evaluates:
JAX has no switch of models to evaluation. Its runs are reported from the second one on.

A function that is made and compiled anew in every step (``jax.jit`` in the loop) is one program as long as the one
before, of the same code, is gone: two that live at the same time, from one factory, are two.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.jax.jax_runs import Runs
from stepscope.collect.session.inside_steps import evaluations
from stepscope.collect.steps import Stepped

_LOG = logging.getLogger("stepscope")

#: How steps were found, for the manifest.
BY_ANNOTATIONS = "StepTraceAnnotation"
BY_UPDATES = "runs of compiled programs that update what they are given"
BY_RUNS = "runs of a compiled program"
BY_GRADIENTS = "gradients computed outside of jit"
BY_CAPTURE = "StepTraceAnnotation, or runs of the compiled program that takes most of the time"

#: Functions of JAX that stand for the user's: in programs compiled ahead of time, parts of derivatives, and pmap.
_STAND_INS = ("PjitFunction", "_cached_shard_map.<locals>._fun")
#: Ranks of reports: of programs that run, that update what they are given, and that compute gradients to do so.
_RUNS, _UPDATES, _TRAINS = range(3)
#: Runs during which a program may prove to update its inputs; after them, one that does not counts if no other does.
_PATIENCE = 8
#: Runs of a program that updates what it is given, up to which a gradient may show that it trains, or another one does:
#: a step may add up the gradients of a thousand samples.
_HELD = 4096
#: Codes of functions that are remembered.
_CODES = 4096
#: Files of installed packages.
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
#: Files that are not the program's own: packages, Python's modules, generated code, and stepscope.
_NOT_OWN = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|[/\\]stepscope[/\\]|^<")


class JaxSteps:
    """Calls ``observe``, which must not raise, after everything in JAX that ends a training step, on its thread."""

    def __init__(self, observe: Callable[[Stepped], None]) -> None:
        self._observe = observe
        self._hooks = MethodHooks()
        self._runs = Runs(self._ran)
        self._programs: dict[int, _JittedProgram] = {}
        self._of_code: dict[Any, _JittedProgram] = {}
        self._gradients: dict[Any, _JittedProgram] = {}
        self._declared: Stepped | None = None
        self._rank = _RUNS
        #: Whether a gradient has been traced since the last run: the program that runs next contains it.
        self._traced = False
        #: Whether the program's own code has run a jitted function, or computed a gradient.
        self._own = False
        self._inside = threading.local()
        #: Programs that may evaluate, and that which trains by whose state this shows; runs since it ran last.
        self._undecided: set[_JittedProgram] = set()
        self._trainer: _JittedProgram | None = None
        self._evaluated: dict[_JittedProgram, int] = {}

    #: How the reader infers the steps of a window that covers the whole program, see `install`.
    later = BY_CAPTURE

    def install(self, *, late: bool) -> None:
        """Put the hooks into JAX: they hold for what is compiled already, too.

        A no-op for a program that already trains: its window is open, so steps are not needed before the window ends,
        and the reader infers them from the annotations and runs that XLA records, at no cost to the program.
        """
        if late:
            return
        annotation = sys.modules["jax"].profiler.StepTraceAnnotation
        self._hooks.around(annotation, "__enter__", self._enter)
        self._hooks.around(annotation, "__exit__", self._exit)
        self._runs.install()
        self._hooks.around(sys.modules.get("jax._src.api"), "vjp", self._differentiated)

    def remove(self) -> None:
        """Remove the hooks; a wrapper that the program has put around one stays and calls through."""
        self._runs.remove()
        self._hooks.remove()
        self._programs.clear()
        self._of_code.clear()
        self._gradients.clear()
        self._forget_evaluations()
        self._declared = None

    def may_wait(self, steps: int) -> str:
        """Return "": JAX does not report programs that have not run."""
        del steps
        return ""

    def _enter(self, original: Callable[..., Any], annotation: Any) -> Any:  # noqa: ANN401 - what JAX returns
        if self._declared is None:
            self._declared = Stepped(_Annotation(), "", BY_ANNOTATIONS, loop=True, declared=True)
            self._programs.clear()  # with their reports
            self._of_code.clear()
            self._gradients.clear()
            self._forget_evaluations()
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        return original(annotation)

    def _exit(self, original: Callable[..., Any], annotation: Any, *error: Any) -> Any:  # noqa: ANN401 - what JAX returns
        result = original(annotation, *error)
        self._inside.depth = getattr(self._inside, "depth", 1) - 1
        if self._inside.depth == 0 and self._declared is not None and error[:1] == (None,):
            self._observe(self._declared)
        return result

    def _ran(self, function: Any, inputs: Any, results: Any) -> None:  # noqa: ANN401 - anything
        """Handle a run of a jitted function; costs the program 1 µs if the function is known."""
        if self._declared is not None:
            return
        program = self._programs.get(id(function)) or self._remember(function)
        if self._traced:
            program.trains, self._traced = True, False
        if program.trains and self._rank == _UPDATES:
            self._find_optimizer(program, inputs)
        trains = self._rank > _RUNS and program.told is not None and program.told.rank == self._rank
        if trains:
            self._trained(program, inputs, results)
        if program.told is not None:
            self._observe(program.told)
        elif program.watched:
            self._watch(program, inputs, results)
        if program.evaluates is not False and not trains and self._rank > _RUNS:
            self._may_evaluate(program, inputs, results)

    def _find_optimizer(self, gradient: _JittedProgram, inputs: Any) -> None:  # noqa: ANN401 - a pytree
        """Make the program whose last results a gradient is given the optimizer: others that update do not train.

        What a program last returned is kept until a run shows that it updates what it is given.
        """
        for program in list(self._programs.values()):
            if program is gradient or not program.updates or not program.given_back(inputs):
                continue
            if program.told is None:
                self._tell(program, BY_UPDATES, _TRAINS, late=True)
            else:
                program.told, self._rank = replace(program.told, rank=_TRAINS), _TRAINS
            return

    def _trained(self, program: _JittedProgram, inputs: Any, results: Any) -> None:  # noqa: ANN401 - pytrees
        """Report the evaluations since the run before, whose results this one is not given."""
        if not self._evaluated and not self._undecided:
            return
        end_ns = perf_counter_ns()
        for evaluator, start_ns in self._evaluated.items():
            if evaluator.evaluates is None and (evaluator.trains or evaluator.given_back(inputs)):
                self._decide(evaluator, evaluates=False)
                continue
            evaluator.tries += 1
            if evaluator.evaluates is None and evaluator.tries >= _PATIENCE:
                self._decide(evaluator, evaluates=True)
            for told in evaluations:
                told(start_ns, end_ns, *evaluator.called_by(program))
        self._evaluated.clear()
        if self._undecided:
            program.keep(results)
            program.callers = program.callers or _callers(sys._getframe(1))
            self._trainer = program

    def _may_evaluate(self, program: _JittedProgram, inputs: Any, results: Any) -> None:  # noqa: ANN401 - pytrees
        """Note a run of a program that is given the trained state, unless it trains, too."""
        if program.evaluates is None:
            self._undecided.add(program)
            trainer = self._trainer
            if trainer is None:
                return
            draws = any(map(_is_key, _arrays(inputs)))  # a policy acts, and what comes of it trains
            if program.trains or draws or not trainer.given_back(inputs):
                program.missed += 1
                if program.trains or draws or program.missed >= _PATIENCE:
                    self._decide(program, evaluates=False)
                return
            program.keep(results)
            program.callers = program.callers or _callers(sys._getframe(1))
        self._evaluated.setdefault(program, perf_counter_ns())

    def _decide(self, program: _JittedProgram, *, evaluates: bool) -> None:
        program.evaluates = evaluates
        self._undecided.discard(program)

    def _forget_evaluations(self) -> None:
        self._undecided.clear()
        self._evaluated.clear()
        self._trainer = None

    def _remember(self, function: Any) -> _JittedProgram:  # noqa: ANN401 - anything
        key, code = id(function), getattr(getattr(function, "func", function), "__code__", None)  # also of a partial
        before = self._of_code.get(code)
        program = before if before is not None and before.gone else _JittedProgram(function)
        self._own = self._own or (program.watched and program.own)
        program.follow(function, lambda _: self._programs.pop(key, None))
        self._programs[key] = program
        if code is not None and len(self._of_code) < _CODES:
            self._of_code[code] = program
        return program

    def _watch(self, program: _JittedProgram, inputs: Any, results: Any) -> None:  # noqa: ANN401 - pytrees
        """Find out whether the runs of a program are steps; if so, report those up to now."""
        program.ends.append(perf_counter_ns())
        try:
            updates = program.given_back(inputs)
            program.keep(results)
        except Exception:  # noqa: BLE001 - law 1: what cannot be looked at does not count as a step
            program.watched = False
            _LOG.debug("stepscope: runs of %s cannot be followed", program.name, exc_info=True)
            return
        again = len(program.ends) >= _PATIENCE
        if updates or program.updates:
            program.updates, program.evaluates = True, False
            if self._may_add_gradients(program):
                self._rank = _UPDATES
                return
            self._tell(program, BY_UPDATES, _TRAINS if program.trains else _UPDATES)
        elif again and not program.nameless and (program.own or not self._own):
            self._tell(program, BY_RUNS, _RUNS)
        program.watched = not again

    def _may_add_gradients(self, program: _JittedProgram) -> bool:
        """Return whether a gradient that another program computes has yet to show which of those that update trains."""
        if program.trains or self._rank == _TRAINS or len(program.ends) >= _HELD:
            return False
        return any(other.trains for other in self._programs.values())

    def _differentiated(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - JAX's
        """Compute a gradient; count it if it is computed now, not traced."""
        result = original(*args, **kwargs)
        if self._declared is None:
            function = sys._getframe(2).f_locals.get("fun")  # of value_and_grad(), behind the frame of MethodHooks
            jax = sys.modules["jax"]
            leaves = jax.tree_util.tree_leaves(args[1:])
            self._traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            if function is not None and not self._traced and self._rank == _RUNS:
                self._computed(function)
        return result

    def _computed(self, function: Any) -> None:  # noqa: ANN401 - anything callable
        """Report gradients of a function, once it shows that they come again and again."""
        self._own = True
        code = getattr(getattr(function, "func", function), "__code__", type(function))
        program = self._gradients.get(code)
        if program is None and len(self._gradients) < _CODES:
            program = self._gradients[code] = _JittedProgram(function)
        if program is None:
            return
        if program.told is not None:
            self._observe(program.told)
            return
        program.ends.append(perf_counter_ns())
        if len(program.ends) >= _PATIENCE:
            self._tell(program, BY_GRADIENTS, _RUNS)

    def _tell(self, program: _JittedProgram, by: str, rank: int, *, late: bool = False) -> None:
        """Report all runs of a program up to now, unless programs of a higher rank are known.

        Args:
            program: The program.
            by: What shows that its runs are steps.
            rank: Its rank.
            late: Whether its last run ended before another program's run that shows it.
        """
        if rank < self._rank:
            return
        program.told = Stepped(program, program.name, by, rank=rank)
        if rank > self._rank:
            self._rank = rank
            self._gradients.clear()
        for end in program.ends:
            self._observe(replace(program.told, at_ns=end, late=late or end != program.ends[-1]))


class _Annotation:
    """Stands for all annotations of steps."""


class _JittedProgram:
    """A jitted function and the state of its runs.

    Args:
        function: The user's function, or JAX's wrapper of it.

    Attributes:
        nameless: Whether it is a wrapper that hides whether the function is the user's or JAX's own.
        own: Whether it is the program's own code, or cannot be told from it.
        watched: Whether it is undecided if its runs are steps; never for JAX's own functions.
        trains: Whether it computes a gradient.
        updates: Whether it gets its own results back.
        told: Report of a run; None if its runs are not steps.
        ends: When the runs ended while it was watched, of ``time.perf_counter_ns``.
        evaluates: Whether it evaluates what another program trains; None while that is open.
        tries, missed: Runs that show it, and runs that were not given the trained state.
        callers: The program's own functions that run it, the outermost first.
    """

    def __init__(self, function: Any) -> None:  # noqa: ANN401 - anything
        self.name = str(getattr(function, "__name__", "") or type(function).__name__)
        module = str(getattr(function, "__module__", None) or "jax.")
        self.nameless = getattr(function, "__qualname__", self.name) in _STAND_INS
        code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
        self.own = code is None or not _PACKAGES.search(code.co_filename)
        self.watched = self.nameless or not f"{module}.".startswith(("jax.", "jaxlib."))
        self.trains = self.updates = False
        self.told: Stepped | None = None
        self.ends: list[int] = []
        self.evaluates: bool | None = None if self.watched and self.own and not self.nameless else False
        self.tries = self.missed = 0
        self.callers: tuple[CodeType, ...] = ()
        self._returned: dict[int, weakref.ref[Any]] = {}
        self._function: Any = None

    @property
    def gone(self) -> bool:
        """Whether the function has been deleted."""
        return isinstance(self._function, weakref.ref) and self._function() is None

    def follow(self, function: Any, gone: Callable[[Any], object]) -> None:  # noqa: ANN401 - anything
        """Be the program of a function; ``gone`` is called when that has been deleted."""
        try:
            self._function = weakref.ref(function, gone)
        except TypeError:  # kept alive: the id of a freed function could be reused
            self._function = function

    def keep(self, results: Any) -> None:  # noqa: ANN401 - a pytree
        """Keep weak references to the returned arrays."""
        self._returned = {id(leaf): weakref.ref(leaf) for leaf in _arrays(results)}

    def called_by(self, trainer: _JittedProgram) -> tuple[str, str]:
        """Return file and name of the outermost function around its runs that does not train; empty without one."""
        code = next((code for code in self.callers if code not in trainer.callers), None)
        return ("", "") if code is None else (code.co_filename, code.co_qualname)

    def given_back(self, inputs: Any) -> bool:  # noqa: ANN401 - a pytree
        """Return whether ``inputs`` contains an array that the last run returned."""
        known = self._returned
        return any((found := known.get(id(leaf))) is not None and found() is leaf for leaf in _arrays(inputs))


def _arrays(tree: Any) -> Iterable[Any]:  # noqa: ANN401 - a pytree
    jax = sys.modules["jax"]
    return (leaf for leaf in jax.tree_util.tree_leaves(tree) if isinstance(leaf, jax.Array))


def _is_key(array: Any) -> bool:  # noqa: ANN401 - a jax.Array
    """Return whether an array is one of random keys, also of those that are plain numbers."""
    jax = sys.modules["jax"]
    plain = array.dtype == "uint32" and array.shape[-1:] == (2,)
    return plain or bool(jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key))


def _callers(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return the code of the program's own functions that are being called, the outermost first."""
    found: list[CodeType] = []
    while frame is not None:
        if not _NOT_OWN.search(frame.f_code.co_filename):
            found.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(found))
