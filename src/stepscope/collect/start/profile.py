"""``stepscope.profile``, and the facts that a program adds to its runs."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from stepscope.collect.frameworks import build_early
from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.journal.values import plain
from stepscope.collect.options import (
    DEFAULT_OUTPUT,
    Options,
    check_collector,
    check_rate,
    check_sample,
    parse_activities,
)
from stepscope.collect.schedule import Schedule, ScheduleFunction, always
from stepscope.collect.session.recorded import RecordedWindow, check_analyse
from stepscope.collect.session.session import Session, remember_metadata
from stepscope.collect.session.window import Settings, Window, one_line
from stepscope.collect.steps import OptimizerLog
from stepscope.errors import LifecycleError, OutputError, UsageError

_LOG = logging.getLogger("stepscope")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_TraceReady: TypeAlias = Callable[[RecordedWindow], object]


class profile:
    """Records where training steps go: a context manager, a decorator, or ``start``, ``step`` and ``stop``.

    ::

        with stepscope.profile(schedule=stepscope.schedule(wait=1, warmup=1, active=3)) as prof:
            for batch in loader:
                train(batch)
                prof.step()

    Each window that the schedule opens becomes a run of its own below ``output``. Without a schedule everything
    between ``start`` and ``stop`` is one window, and steps that nobody declares are found by the optimizers. After
    ``stop`` the object may be started again, counting from step 0.

    Nothing that goes wrong while recording is raised into the training: it is said in the manifest and logged once by
    the logger ``stepscope``.

    Args:
        activities: Whose work to record: members of ``stepscope.Activity``, their names, or members of
            ``torch.profiler.ProfilerActivity``; None means the CPU and every device there is.
        schedule: Step number → action, as :func:`stepscope.schedule` returns; those of ``torch.profiler`` work, too.
        on_trace_ready: Called with a :class:`~stepscope.collect.session.recorded.RecordedWindow` when a window has
            closed, in the thread that closed it. What it raises is counted and logged, not raised.
        record_shapes: Record shapes and types of operator inputs.
        profile_memory: Record memory taken and freed. With torch this records the starting thread only.
        with_stack: Record the Python stack of every operator.
        with_flops: Count floating-point operations of matrix products and convolutions.
        with_modules: Record which module called an operator.
        host_pipeline: Record what MindSpore's threads do besides running operators; see docs/mindspore.md.
        counters_hz: Samples a second of the host's counters; 0 for none.
        collector: Who records PyTorch's operators: ``"kineto"``, PyTorch's own; ``"native"``, our recorder, which is
            built on first use; ``"auto"``, the latter on CPUs in a single process, where it can be built, and on
            NVIDIA GPUs where ``stepscope doctor --build`` has found that it records them as Kineto does.
        sample: Fraction of PyTorch's operators that is recorded; less than 1 needs the native recorder.
        output: Directory of runs; it is made, and must be writable.
        analyse: ``"background"`` computes the results at once in a process of low priority, ``"later"`` leaves them to
            ``stepscope report``.

    Raises:
        UsageError: An argument cannot be used.
    """

    def __new__(cls, function: Any = None, /, **arguments: Any) -> profile:  # noqa: ANN401 - any function
        """Return a profile; without brackets, as in ``@stepscope.profile``, the function decorated by a plain one."""
        return super().__new__(cls) if function is None else cls(**arguments)(function)

    def __init__(
        self,
        *,
        activities: Iterable[object] | None = None,
        schedule: ScheduleFunction | None = None,
        on_trace_ready: _TraceReady | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        host_pipeline: bool = True,
        counters_hz: float = 10.0,
        collector: str = "auto",
        sample: float = 1.0,
        output: str | os.PathLike[str] = DEFAULT_OUTPUT,
        analyse: str = "background",
    ) -> None:
        self._options = Options(
            activities=parse_activities(activities),
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            host_pipeline=host_pipeline,
            counters_hz=check_rate(counters_hz),
            collector=check_collector(collector),
            sample=check_sample(sample),
        )
        self._output = Path(output)
        self._schedule = schedule or always
        self._on_trace_ready = on_trace_ready
        self._analyse = check_analyse(analyse)
        self._session: Session | None = None
        self.recorded: list[RecordedWindow] = []

    @property
    def step_number(self) -> int:
        """Number of the step that is going on, counted from 0 at :meth:`start`."""
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
        log = OptimizerLog() if self._schedule is always else None
        settings = Settings(
            self._options,
            absolute(self._output),
            program_name(),
            describe_schedule(self._schedule),
            lambda: (log.describe() if log else {}) or {"source": "declared", "by": "step()"},
        )
        session = Session(settings, self._schedule, source="declared", on_saved=self._saved, log=log)
        session.begin()
        self._session = session

    def step(self) -> None:
        """Say that a training step has ended. In a forked child this does nothing.

        Raises:
            LifecycleError: The profile is not running.
        """
        session = self._session
        if session is None or not (session.running or session.in_child):
            message = f"step() was called {'before start()' if session is None else 'after stop()'}."
            raise LifecycleError(message, "Call it between start() and stop(), or inside `with stepscope.profile():`.")
        session.boundary()
        pass_on()

    def stop(self) -> None:
        """End: the window that is open is closed and kept. A second call does nothing.

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
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        if kind is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self._session.end()
            pass_on()
        else:
            self._session.end(f"failed at step {self.step_number}", {"exception": kind.__name__})

    def __call__(self, function: _Function) -> _Function:
        """Return ``function`` with a window around each call; calls from inside a call are part of it."""

        @functools.wraps(function)
        def profiled(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of the function
            if self._session is not None and self._session.running:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return profiled  # type: ignore[return-value]

    def _saved(self, window: Window) -> None:
        """Have the results computed and tell the user's handler; what that raises is counted, not raised."""
        recorded = RecordedWindow(window, self._analyse)
        self.recorded.append(recorded)
        if self._on_trace_ready is None:
            return
        try:
            self._on_trace_ready(recorded)
        except Exception as error:  # noqa: BLE001 - law 1: a handler must not end the training
            window.count_loss("handler_failed", one_line(error))
            window.write_manifest()
            _LOG.warning("stepscope: on_trace_ready raised %s; training goes on.", one_line(error))


#: For ``help`` and completion, which would show the parameters of ``__new__``.
profile.__signature__ = inspect.Signature(list(inspect.signature(profile.__init__).parameters.values())[1:])  # type: ignore[attr-defined]


def add_metadata(key: str, value: object) -> None:
    """Record a fact about the run, now and in every later window of this process.

    Args:
        key: Name of the fact.
        value: Numbers, texts, lists and mappings are kept; of other objects the name of their type.

    Raises:
        UsageError: The key is no text.
    """
    remember_metadata(_key(key), json.dumps(plain(value)))


def add_metadata_json(key: str, text: str) -> None:
    """Record a fact about the run that is JSON text already; see :func:`add_metadata`.

    Raises:
        UsageError: The key is no text, or ``text`` is no valid JSON.
    """
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (TypeError, ValueError) as error:
        message = f"add_metadata_json({key!r}, …): the text is no JSON ({error})."
        raise UsageError(message, "Pass json.dumps(value), or the value itself to add_metadata().") from None
    remember_metadata(_key(key), text)


def _refuse_constant(name: str) -> None:
    message = f"{name} is no JSON"
    raise ValueError(message)


def _key(key: object) -> str:
    if not isinstance(key, str):
        message = f"The key of metadata must be a text, not {key!r}."
        raise UsageError(message, "Write add_metadata('learning_rate', 0.1).")
    return key


def absolute(output: Path) -> Path:
    """Return ``output`` as an absolute path: the program may change its directory.

    Raises:
        OutputError: It is relative, and the current directory does not exist any more.
    """
    try:
        return Path(os.path.abspath(output))  # noqa: PTH100 - keeps links, unlike Path.resolve
    except FileNotFoundError:
        message = f"The current directory does not exist, so {output} is nowhere."
        raise OutputError(message, "Name an absolute directory with --output (or output=).") from None


def program_name() -> str:
    """Return what runs are called after: the script's or module's name."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "stepscope.__main__"):
        return str(spec.name.removesuffix(".__main__").rpartition(".")[2])
    return Path(getattr(main, "__file__", None) or "python").stem


def describe_schedule(schedule: ScheduleFunction) -> str:
    """Return a schedule in words, for the manifest."""
    if schedule is always:
        return "everything between start and stop"
    if isinstance(schedule, Schedule):
        return ", ".join(f"{name} {value}" for name, value in vars(schedule).items())
    return f"{getattr(schedule, '__module__', '')}.{getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
