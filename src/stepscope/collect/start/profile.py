"""``stepscope.profile``, and the facts that a program adds to its runs."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from stepscope.collect.error_stream import say
from stepscope.collect.frameworks import build_early
from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.journal.values import plain
from stepscope.collect.options import DEFAULT_OUTPUT, Door, check_given, make_options, options_at
from stepscope.collect.schedule import Schedule, ScheduleFunction, always
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
from stepscope.collect.session.session import Session, remember_metadata
from stepscope.collect.session.window import COMPLETE, Settings, Window, ending, one_line
from stepscope.collect.steps import OptimizerLog
from stepscope.errors import LifecycleError, OutputError, UsageError
from stepscope.notebook_display import NotebookDisplay

_LOG = logging.getLogger("stepscope")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_TraceReady: TypeAlias = Callable[[RecordedWindow], object]
#: Jupyter's variable with the path of the notebook that a process runs.
_NOTEBOOK = "JPY_SESSION_NAME"
#: What :meth:`profile.phase` takes.
PHASES_BESIDES = ("evaluation", "checkpoint", "logging", None)


class profile(NotebookDisplay):
    """Records where training steps go: a context manager, a decorator, or ``start``, ``step`` and ``stop``.

    ::

        with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=1, active=3)) as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Each window that the schedule opens becomes a run of its own below ``output``. Without a schedule everything
    between ``start`` and ``stop`` is one window, and the optimizers show the steps unless :meth:`step` declares them.
    After ``stop`` the object may be started again, counting from step 0.

    An error while recording is not raised into the training: the manifest names it, and the logger ``stepscope`` logs
    it once.

    Args:
        schedule: Step number → action, as :func:`stepscope.schedule` returns; those of ``torch.profiler`` work, too.
        on_trace_ready: Called with a :class:`~stepscope.collect.session.recorded.RecordedWindow` when a window has
            closed, in the thread that closed it. What it raises is counted and logged, not raised.
        options: The other arguments are the options of ``docs/options.md``.

    Raises:
        UsageError: An option cannot have the value given.
    """

    _door = "code"

    def __new__(cls, function: Any = None, /, **arguments: Any) -> profile:  # noqa: ANN401 - any function
        """Return a profile; without brackets, as in ``@stepscope.profile``, the function decorated by a plain one."""
        return super().__new__(cls) if function is None else cls(**arguments)(function)

    def __init__(
        self,
        *,
        schedule: ScheduleFunction | None = None,
        on_trace_ready: _TraceReady | None = None,
        activities: Iterable[object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        host_pipeline: bool = True,
        counters_hz: float = 10.0,
        stacks_hz: float = 50.0,
        data_process: bool = False,
        parallel_strategy: bool = False,
        host_sys: Iterable[str] = (),
        sys_io: bool = False,
        pcie: bool = False,
        collector: str = "auto",
        sample: float = 1.0,
        mstx_domain_include: Iterable[str] = (),
        mstx_domain_exclude: Iterable[str] = (),
        argv: bool = True,
        output: str | os.PathLike[str] = DEFAULT_OUTPUT,
        analyse: str = "background",
        quiet: bool = False,
    ) -> None:
        given = locals()  # the first statement: the parameters by name, and nothing else
        values = check_given(Door.CODE, {**given, "activities": activities or ()})
        self._options = make_options(values)
        self._output = Path(values["output"])
        self._schedule = schedule or always
        self._saved = _Saved(on_trace_ready, values["analyse"], quiet=values["quiet"])
        self._session: Session | None = None
        self.recorded: list[RecordedWindow] = self._saved.windows

    @property
    def step_number(self) -> int:
        """Number of the current step, counted from 0 at :meth:`start`."""
        return self._session.number if self._session is not None else 0

    def start(self) -> None:
        """Begin at step 0.

        Raises:
            LifecycleError: This profile, or another one of this process, is running.
            OutputError: The output directory cannot be made or written.
        """
        if self._session is not None and self._session.running and not self._session.in_child:
            message = "This profile was started already."
            raise LifecycleError(message, "Call stop() before start(), or step() between steps.")
        build_early(self._options)
        if self._schedule is not always:  # else the window opens now
            rehearse(self._options)
        log = OptimizerLog() if self._schedule is always else None
        settings = Settings(
            self._options,
            absolute(self._output),
            program_name(),
            describe_schedule(self._schedule),
            lambda: (log.describe() if log else {}) or {"source": "declared", "by": "step()"},
            door=self._door,
        )
        session = Session(settings, self._schedule, source="declared", on_saved=self._saved.add, log=log)
        session.give_way = functools.partial(_end_abandoned, weakref.ref(self), weakref.ref(session))
        session.begin()
        self._session = session

    def step(self) -> None:
        """Note that a training step has ended. In a forked child this does nothing.

        Raises:
            LifecycleError: The profile is not running.
        """
        session = self._session
        if session is None or not session.may_step:
            message = f"step() was called {'before start()' if session is None else 'after stop()'}."
            raise LifecycleError(message, "Call it between start() and stop(), or inside `with stepscope.profile():`.")
        session.boundary()
        pass_on()

    def phase(self, name: str | None) -> None:
        """Say what the program does besides training from here on, until the next call or the end of the step.

        It replaces what stepscope finds of that name itself. While the profile does not run, this does nothing.

        Args:
            name: ``evaluation``, ``checkpoint`` or ``logging``; None: it trains again.

        Raises:
            UsageError: The name is another one.
        """
        if name not in PHASES_BESIDES:
            message = f"phase({name!r}): the phase is unknown."
            raise UsageError(message, "Say evaluation, checkpoint, logging, or None for training.")
        session = self._session
        if session is not None and session.running and not session.in_child:
            session.times.phase(name)

    def stop(self) -> None:
        """Close the open window and keep it. A second call does nothing.

        Raises:
            LifecycleError: ``start`` was never called, or the recording belongs to another thread that is still alive
                (with ``profile_memory``, torch records the thread that starts it): stop it there.
        """
        if self._session is None:
            message = "stop() was called before start()."
            raise LifecycleError(message, "Call start() first, or use `with stepscope.profile():`.")
        owner = self._session.thread
        if owner not in (0, threading.get_ident()) and any(thread.ident == owner for thread in threading.enumerate()):
            message = "stop() was called on another thread than start(), and torch records memory on that thread only."
            raise LifecycleError(message, "Stop on the thread that started, or use profile_memory=False.")
        self._session.end()
        pass_on()

    def add_metadata(self, key: str, value: object) -> None:
        """Record a fact about the run; see :func:`add_metadata`."""
        add_metadata(key, value)

    def add_metadata_json(self, key: str, text: str) -> None:
        """Record a fact about the run as JSON text; see :func:`add_metadata_json`."""
        add_metadata_json(key, text)

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        status, notes = ending(self._session.reached, error)
        self._session.end(status, notes)
        if status == COMPLETE:
            pass_on()

    def __call__(self, function: _Function) -> _Function:
        """Return ``function`` with a window around each call; calls from inside a call are part of it."""

        @functools.wraps(function)
        def profiled(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            if self._session is not None and self._session.running:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return profiled  # type: ignore[return-value]


class _Saved:
    """The windows of a profile. Its session refers to them, and not to the profile, which the program may drop."""

    def __init__(self, on_trace_ready: _TraceReady | None, analyse: str, *, quiet: bool) -> None:
        self.windows: list[RecordedWindow] = []
        self._on_trace_ready = on_trace_ready
        self._analyse = analyse
        self._quiet = quiet

    def add(self, window: Window) -> None:
        """Keep the window and call the user's handler; what the handler raises is counted and logged."""
        recorded = record(window, self._analyse)
        self.windows.append(recorded)
        if not self._quiet and window.place.rank == 0:
            self._quiet = True  # once
            say(f"recorded in {recorded.path}")
        if self._on_trace_ready is None:
            return
        try:
            self._on_trace_ready(recorded)
        except Exception as error:  # noqa: BLE001 - law 1: a handler must not end the training
            window.count_loss("handler_failed", one_line(error))
            window.write_manifest()
            _LOG.warning("stepscope: on_trace_ready raised %s; training goes on.", one_line(error))


def _end_abandoned(profile: weakref.ref[Any], session: weakref.ref[Session]) -> None:
    """End the session of a profile that the program cannot stop any more: nothing refers to it, and another begins."""
    running = session()
    if profile() is None and running is not None:
        running.end(COMPLETE, {"ended_by": "another profile, after the program had dropped this one"})


def record(window: Window, analyse: str) -> RecordedWindow:
    """Return the record of a window, and compute its results when the option ``analyse`` says."""
    recorded = RecordedWindow(window, "later" if analyse == "later" else "background")
    if analyse == "now":
        recorded.wait()
    return recorded


#: ``help`` lists the options below the docstring.
profile.__doc__ = f"{profile.__doc__ or ''}\n    Options:\n" + "".join(
    f"        {name}: {option.help} ({option.expectation}).\n" for name, option in options_at(Door.CODE).items()
)
#: For ``help`` and completion, which would show the parameters of ``__new__``.
profile.__signature__ = inspect.Signature(list(inspect.signature(profile.__init__).parameters.values())[1:])  # type: ignore[attr-defined]


def add_metadata(key: str, value: object) -> None:
    """Record a fact about the run, now and in every later window of this process.

    Args:
        key: Name of the fact.
        value: Numbers, texts, lists and mappings are kept; of other objects the name of their type.

    Raises:
        UsageError: The key is not a text.
    """
    remember_metadata(_key(key), json.dumps(plain(value)))


def add_metadata_json(key: str, text: str) -> None:
    """Record a fact about the run, given as JSON text; see :func:`add_metadata`.

    Raises:
        UsageError: The key is not a text, or ``text`` is not valid JSON.
    """
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (TypeError, ValueError) as error:
        message = f"add_metadata_json({key!r}, …): the text is not JSON ({error})."
        raise UsageError(message, "Pass json.dumps(value), or the value itself to add_metadata().") from None
    remember_metadata(_key(key), text)


def _refuse_constant(name: str) -> None:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _key(key: object) -> str:
    if not isinstance(key, str):
        message = f"The key of metadata must be a text, not {key!r}."
        raise UsageError(message, "Write add_metadata('learning_rate', 0.1).")
    return key


def absolute(output: Path) -> Path:
    """Return ``output`` as an absolute path: the program may change its directory.

    Raises:
        OutputError: It is relative, and the current directory does not exist.
    """
    try:
        return Path(os.path.abspath(output))  # noqa: PTH100 - keeps links, unlike Path.resolve
    except FileNotFoundError:
        message = f"The current directory does not exist, so {output} is nowhere."
        raise OutputError(message, "Name an absolute directory with --output (or output=).") from None


def program_name(unnamed: str = "python") -> str:
    """Return the name that runs get: that of the script, module or notebook."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "stepscope.__main__"):
        return str(spec.name.removesuffix(".__main__").rpartition(".")[2])
    return Path(getattr(main, "__file__", None) or os.environ.get(_NOTEBOOK) or unnamed).stem


def describe_schedule(schedule: ScheduleFunction) -> str:
    """Return a schedule in words, for the manifest."""
    if schedule is always:
        return "everything between start and stop"
    if isinstance(schedule, Schedule):
        return ", ".join(f"{name} {value}" for name, value in vars(schedule).items())
    if words := getattr(schedule, "words", ""):
        return str(words)
    return f"{getattr(schedule, '__module__', '')}.{getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
