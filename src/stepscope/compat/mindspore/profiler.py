"""``profile`` of MindSpore 2.6 and later, ``Profiler`` of every version, and ``EnvProfiler``."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from sys import getsizeof
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from stepscope.collect.hooks.training_error import pass_on
from stepscope.collect.session.recorded import RecordedWindow
from stepscope.collect.session.rehearsal import rehearse
from stepscope.collect.session.window import ending
from stepscope.collect.start import environment, stand_in
from stepscope.collect.start.profile import add_metadata, add_metadata_json
from stepscope.compat.mindspore import handler, offline, operators, results, situations, switches
from stepscope.compat.mindspore.parameters import resolve
from stepscope.compat.mindspore.recorder import MindSporeRecorder, Plan, end_replaced
from stepscope.compat.mindspore.schedules import ScheduleFunction, always, is_schedule
from stepscope.compat.mindspore.vocabulary import ProfileOption, ProfilerAction, _ExperimentalConfig
from stepscope.errors import ArgumentError, UsageError

_LOG = logging.getLogger("stepscope")
_Self = TypeVar("_Self", bound="_Handle")

#: Where MindSpore 1.x wrote its files, in the directory of results; here with ``stepscope run --as mindspore``.
_OLD_RESULTS = "profiler"

#: MindSpore 2.10's limit in bytes. MindSpore compares the size of its dictionary; here keys and values are summed.
LIMIT = 100 << 20


class ProfileMetadata:
    """The metadata of one profile, which is written to this window and all later ones.

    It accepts the same facts as MindSpore 2.10, and logs the same lines about the others.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def add(self, key: object, value: object, *, is_json: bool) -> None:
        """Record a fact, or log why not. It does not raise, as documented."""
        if not isinstance(key, str) or not isinstance(value, str):
            _LOG.warning("The key and value of metadata must be string. Skip this metadata.")
            return
        size = getsizeof(key) + getsizeof(value)
        others = sum(self._sizes.values()) - self._sizes.get(key, 0)
        if others + size >= LIMIT:
            _LOG.warning("Too many metadata added. Skip this metadata")
            return
        try:
            add_metadata_json(key, value) if is_json else add_metadata(key, value)
        except UsageError:
            _LOG.warning("The metadata value must be json format string. Skip this metadata")
            return
        if key in self._sizes:
            _LOG.warning("%s is already saved as metadata, override it.", key)
        self._sizes[key] = size


class _Handle:
    """The base of both classes. Several handles can share one recorder."""

    _NAME: ClassVar[str] = ""

    def _make(self, given: Mapping[str, Any], schedule: ScheduleFunction | None) -> None:
        """Make the recorder, and start it if ``start_profile`` is True."""
        end_replaced(sys._getframe(2))  # the program's
        values = resolve(given)
        plan = Plan(
            options=switches.options(values),
            output=self._within(handler.output_of(values["output_path"] if given.get("output_path") else None)),
            worker=handler.worker(),
            formats=switches.formats(values),
            schedule=schedule,
            unserved=switches.unserved(values, given),
        )
        self._values = values
        self._facts = ProfileMetadata()
        self._recorder = MindSporeRecorder(plan)
        self._recorder.handle = weakref.ref(self)
        self._recorder.on_ready = self._notifier(values["on_trace_ready"])
        if values["start_profile"]:
            self._recorder.start()
        else:
            rehearse(plan.options)

    def _within(self, output: Path) -> Path:
        """Return the directory of runs in the directory of results that the program names."""
        return output

    def _notifier(self, on_trace_ready: Callable[[Any], object] | None) -> Callable[[], object] | None:
        """Return the function that calls the program's handler when a window is ready.

        It holds only a weak reference to this object: a strong one would keep a deleted profile alive, and ``__del__``
        would never end its recording. After the deletion the handler gets a new handle of the same recorder.
        """
        if on_trace_ready is None:
            return None
        reference, kind, parts = weakref.ref(self), type(self), dict(vars(self))

        def notify() -> None:
            profile = reference()
            if profile is None:
                profile = object.__new__(kind)
                vars(profile).update(parts)
            on_trace_ready(profile)

        return notify

    @property
    def step_num(self) -> int:
        """Number of the current step, counted from 0."""
        return self._recorder.step_number

    @property
    def current_action(self) -> ProfilerAction:
        """The action of the current step."""
        return self._recorder.action

    @property
    def schedule(self) -> ScheduleFunction:
        """Step number → action."""
        return self._recorder.plan.schedule or always

    @property
    def recorded(self) -> list[RecordedWindow]:
        """The windows that were recorded, in order; each is a run."""
        return list(self._recorder.recorded)

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: It has started already, or was constructed with ``start_profile=True``; for ``Profiler`` also
                if collection of the data pipeline has been stopped.
        """
        if self._recorder.running:
            by_constructor = self._values["start_profile"]
            situation = situations.STARTED_BY_CONSTRUCTOR if by_constructor else situations.STARTED_TWICE
            situations.refuse(situation, self._NAME)
            return
        if situations.strict() and self._values["start_profile"]:
            situations.refuse(situations.STARTED_BY_CONSTRUCTOR, self._NAME)
        self._recorder.start()

    def stop(self) -> None:
        """Stop recording, and save the open window.

        Raises:
            RuntimeError: It has not started.
        """
        if self._recorder.running:
            self._recorder.end()
            pass_on()
        else:
            situations.refuse(situations.NOT_STARTED, self._NAME)

    def step(self) -> None:
        """Mark the end of a training step.

        Raises:
            RuntimeError: The profile has no schedule, or has not started.
        """
        if self._recorder.plan.schedule is None and situations.strict():
            situations.refuse(situations.STEP_WITHOUT_SCHEDULE, self._NAME)
        if self._recorder.running:
            self._recorder.boundary()
            pass_on()
        else:
            situations.refuse(situations.STEP_STOPPED, self._NAME)

    def add_metadata(self, key: str, value: str) -> None:
        """Record a fact (key and value are strings) about this window and all later ones."""
        self._facts.add(key, value, is_json=False)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Record a fact (a JSON text) about this window and all later ones."""
        self._facts.add(key, value, is_json=True)

    def _analyse(self, *, pretty: object, step_list: object, wait: bool) -> None:
        request = results.Request(
            self._recorder.plan.formats,
            pretty=results.checked_pretty(pretty),
            step_list=results.checked_steps(step_list),
            wait=wait,
            show=not self._recorder.handing_over,
            deliverables=self._deliverables(),
        )
        self._recorder.analyse(request)

    def _deliverables(self) -> Path | None:
        """Return where MindSpore 2 writes its directories ``…_ascend_ms``; None if names are not replaced."""
        output = self._recorder.plan.output
        if "mindspore" not in stand_in.active:
            return None
        return output.parent if output.name == _OLD_RESULTS else output

    def __enter__(self: _Self) -> _Self:
        if not self._recorder.running:
            self._recorder.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._recorder.end(*ending(self.step_num, error))

    def __del__(self) -> None:
        recorder = vars(self).get("_recorder")  # the constructor may have failed
        if recorder is not None:
            recorder.abandon()


class profile(_Handle):
    """Records a network's training: MindSpore's ``profile``, with its arguments in its order.

    ::

        with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=tensorboard_trace_handler()) as prof:
            for batch in data:
                train(batch)
                prof.step()

    A wrong argument is logged and replaced by its default; ``docs/mindspore.md`` lists what each argument records.

    Args:
        activities: List of :class:`ProfilerActivity`; None means CPU and NPU.
        with_stack: Record Python stacks.
        profile_memory: Record allocations and frees.
        data_process: Record the data pipeline; ignored with a schedule.
        parallel_strategy: Record the parallel strategy that the model declares.
        start_profile: Start in the constructor.
        hbm_ddr: Record the memory bandwidth of a device.
        pcie: Record traffic between host and device.
        sync_enable: Use synchronous timing on a GPU.
        record_shapes: Record shapes of operator inputs.
        schedule: Step number → :class:`ProfilerAction`; None records everything between start and stop.
        on_trace_ready: Called with this profile when a window is ready.
        experimental_config: A ``_ExperimentalConfig``.
    """

    _NAME = "profile"

    def __init__(
        self,
        activities: list[Any] | None = None,
        with_stack: bool = False,  # noqa: FBT001, FBT002 - order and defaults are MindSpore's
        profile_memory: bool = False,  # noqa: FBT001, FBT002
        data_process: bool = False,  # noqa: FBT001, FBT002
        parallel_strategy: bool = False,  # noqa: FBT001, FBT002
        start_profile: bool = True,  # noqa: FBT001, FBT002
        hbm_ddr: bool = False,  # noqa: FBT001, FBT002
        pcie: bool = False,  # noqa: FBT001, FBT002
        sync_enable: bool = True,  # noqa: FBT001, FBT002
        record_shapes: bool = False,  # noqa: FBT001, FBT002
        schedule: ScheduleFunction | None = None,
        on_trace_ready: Callable[[Any], object] | None = None,
        experimental_config: _ExperimentalConfig | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        if schedule is not None and not callable(schedule):
            _LOG.warning("schedule is not Callable, set by default.")
            schedule = None
        given["schedule"] = schedule if is_schedule(schedule) else None  # any other callable is used unchecked
        self._make(given, schedule)

    def analyse(
        self,
        *,
        pretty: bool = False,
        step_list: list[int] | None = None,
        async_mode: bool = False,
    ) -> None:
        """Compute the results of the windows recorded so far, into their ``results/``.

        Args:
            pretty: Indent JSON files.
            step_list: Consecutive recorded steps to keep; the first is 1. None keeps all.
            async_mode: Do not wait: a process of low priority computes them.
        """
        self._analyse(pretty=pretty, step_list=step_list, wait=not async_mode)


class Profiler(_Handle):
    """Records a network's training: MindSpore's ``Profiler``, with every argument of every version.

    ::

        profiler = Profiler(output_path="./data")
        train(net)
        profiler.analyse()

    Unknown arguments are logged and ignored; wrong ones are logged and replaced by their defaults. All arguments are in
    ``docs/mindspore.md``.
    """

    _NAME = "Profiler"

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as documented
        _LOG.warning(
            "'mindspore.Profiler' will be deprecated and removed in a future version. Please use the api "
            "'mindspore.profiler.profile' instead."
        )
        given = dict(kwargs)
        if given.get("schedule") is not None and not is_schedule(given["schedule"]):
            given["schedule"] = resolve({"schedule": given["schedule"]})["schedule"]
        self._stepped = False
        self._pipeline_stopped = False
        self._make(given, given.get("schedule"))

    def _within(self, output: Path) -> Path:
        return output / _OLD_RESULTS if "mindspore" in stand_in.active else output

    def start(self) -> None:
        """Begin to record; see :meth:`profile.start`."""
        if self._pipeline_stopped and not self._recorder.running and situations.strict():
            situations.refuse(situations.PIPELINE_STOPPED, self._NAME)
        super().start()

    def stop(self) -> None:
        """Stop recording; with a schedule, but without a call of ``step()``, log a warning and go on.

        Raises:
            RuntimeError: It has not started.
        """
        if self._recorder.plan.schedule is not None and not self._stepped:
            _LOG.warning("The profiler has schedule. Please use step() to collect data.")
            return
        super().stop()
        self._pipeline_stopped = self._values["data_process"]

    def step(self) -> None:
        """Mark the end of a training step; see :meth:`profile.step`."""
        if self._recorder.plan.schedule is None:
            situations.refuse(situations.STEP_WITHOUT_SCHEDULE, self._NAME)
            return
        super().step()
        self._stepped = True

    def analyse(
        self,
        offline_path: str | None = None,
        pretty: bool = False,  # noqa: FBT001, FBT002 - as documented
        step_list: list[int] | None = None,
        mode: str = "sync",
        *,
        async_mode: bool | None = None,
    ) -> None:
        """Stop if it is recording, and compute the results of what was recorded, into the run's ``results/``.

        Args:
            offline_path: Deprecated: directory to analyse if this profiler has recorded nothing.
            pretty: Indent JSON files.
            step_list: Consecutive recorded steps to keep; the first is 1. None keeps all.
            mode: ``"sync"``, or ``"async"``: a process of low priority computes them.
            async_mode: Overrides ``mode``; ``tensorboard_trace_handler`` passes it.
        """
        wait = not async_mode if async_mode is not None else results.checked_mode(mode) == "sync"
        if self._recorder.handing_over:
            self._analyse(pretty=pretty, step_list=step_list, wait=wait)
            return
        self._recorder.end()
        if self._recorder.plan.schedule is not None:
            _LOG.warning("The profiler has schedule. Please use 'on_trace_ready' to analyse data.")
            return
        if offline_path:
            _LOG.warning(
                "The parameter 'offline_path' for Profiler.analyse() is deprecated, please use "
                "Profiler.offline_analyse() instead."
            )
            if not self._recorder.recorded:
                offline.analyse(offline_path, pretty=pretty, step_list=step_list)
                return
        self._analyse(pretty=pretty, step_list=step_list, wait=wait)
        if self._recorder.plan.output.name == _OLD_RESULTS and "mindspore" in stand_in.active:
            self._recorder.copy_captures()

    @classmethod
    def offline_analyse(
        cls,
        path: str,
        pretty: bool = False,  # noqa: FBT001, FBT002 - as documented
        step_list: list[int] | None = None,
        data_simplification: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Compute the results of earlier recordings; see :func:`stepscope.compat.mindspore.analyse`."""
        offline.analyse(path, pretty=pretty, step_list=step_list, data_simplification=data_simplification)

    def op_analyse(self, op_name: str | list[str], device_id: int | None = None) -> str | None:
        """Return how often operators ran and how long they took, as JSON text.

        Args:
            op_name: Type of an operator, such as ``"MatMul"``, or several.
            device_id: Value of ``device_id`` in the text; None means ``DEVICE_ID`` of the environment, or 0.

        Raises:
            TypeError: An argument has the wrong type.
            RuntimeError: Nothing has been recorded, or an operator did not run.
        """
        return operators.op_analyse(self._recorder, op_name, device_id)

    @staticmethod
    def profile(network: Any, profile_option: ProfileOption | None = None) -> dict[str, int]:  # noqa: ANN401, ARG004
        """Return the number of trainable parameters of a network, under the name of the only documented option.

        Args:
            network: A ``mindspore.nn.Cell``.
            profile_option: Deprecated.

        Raises:
            ValueError: ``network`` is not a cell.
        """
        if not callable(getattr(network, "trainable_params", None)):
            message = f"Profiling: The network should be an object of nn.Cell, not {type(network).__name__}."
            raise ArgumentError(message, "Write Profiler.profile(network, ProfileOption.trainable_parameters).")
        return {"trainable_parameters": len(network.trainable_params())}


class EnvProfiler:
    """The recording that ``MS_PROFILER_OPTIONS`` asks for in this process; see ``docs/environment.md``.

    The start-up hook begins the recording when MindSpore is imported, so a program need not use this class.

    Attributes:
        NOT_SUPPORTED_PARAMS: Arguments of ``profile`` that the environment cannot set.
        profiler: The recording; None if the environment asks for none.
    """

    NOT_SUPPORTED_PARAMS: ClassVar[list[str]] = ["schedule", "on_trace_ready"]
    profiler: ClassVar[environment.EnvironmentRecording | None] = None

    @classmethod
    def init_profiler(cls) -> None:
        """Begin the recording that the environment asks for, unless the start-up hook has begun it."""
        environment.begin()
        cls.profiler = environment.current()

    def analyse(self) -> None:
        """Stop, and compute the results; otherwise this happens at the end of the program."""
        asked = environment.current()
        if asked is not None:
            asked.finish()
