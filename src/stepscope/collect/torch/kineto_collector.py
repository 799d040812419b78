"""What PyTorch does: operators, kernels, copies, memory, stacks and collectives, recorded by Kineto.

No event becomes a Python object here: Kineto writes its own JSON file. Features that the installed torch (2.1 to 2.14)
lacks are detected and omitted.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.journal.saving import SavedFile, fork_pays, own_memory
from stepscope.collect.options import Activity
from stepscope.collect.protocol import Context, StepMarks
from stepscope.collect.torch.native_calls import OWN_PROFILE_FUNCTION
from stepscope.collect.torch.open_ranges import OpenRanges
from stepscope.native.recorder import hushed

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

#: Names of the members of ``torch.profiler.ProfilerActivity``.
_ACTIVITY_NAMES = {activity: activity.name for activity in Activity} | {Activity.PRIVATE_USE: "PrivateUse1"}

#: Modules of torch whose runtime must not be forked once it is initialised.
_DEVICE_MODULES = ("cuda", "xpu", "mtia", "hpu")

#: Level of Kineto's logger, which writes to standard error, at which it is silent.
_KINETO_SILENT = "6"

#: Bytes of events up to which a forked child frees them (0.1 s); more are kept: freeing would delay the child.
_FEW = 64 << 20

_LOG = logging.getLogger("stepscope")


class TorchCollector:
    """Records one window with Kineto into ``capture/kineto_0.json``."""

    name = "torch"
    framework = "torch"

    def __init__(self) -> None:
        self._kineto: Any = None
        self._result: Any = None
        self._file: SavedFile | None = None
        self._path = Path()
        self._memory_before = 0
        self._step: Any = None
        self._ops: Any = None
        self._thread = 0
        self._prepared = self._started = False
        self._ranges = OpenRanges()
        self._journal: Journal | None = None
        self._guard = MethodHooks()
        self._hushes = False
        self._quiet = ExitStack()
        self._description: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why Kineto cannot record now: no torch, no Kineto in it, or another profiler of torch records."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "the program has not imported torch"
        if not torch.autograd.kineto_available():
            return f"torch {torch.__version__} was built without Kineto"
        if foreign_profiler(torch):
            return "another torch profiler is recording; torch has room for one"
        return None

    def prepare(self, context: Context) -> None:
        """Configure Kineto and let it load what it needs (CUPTI).

        Raises:
            RuntimeError: A torch profiler of the program is prepared.
        """
        torch = sys.modules["torch"]
        options = context.options
        activities, missing = recordable(torch, options.activities)
        stacks = options.with_stack and sys.getprofile() is None  # Kineto would replace the program's own function
        if stacks != options.with_stack:
            missing = {**missing, "stacks": OWN_PROFILE_FUNCTION}
        flags = _experimental_flags(with_stack=stacks, profile_memory=options.profile_memory)
        self._kineto = sys.modules["torch.profiler"].profiler._KinetoProfile(
            activities=activities,
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=stacks,
            with_flops=options.with_flops,
            with_modules=options.with_modules,
            experimental_config=torch._C._profiler._ExperimentalConfig(**flags),
        )
        self._path = context.capture / "kineto_0.json"
        self._journal = context.journal
        self._hushes = options.profile_memory
        self._description = {
            "recorder": "kineto",
            "version": str(torch.__version__),
            "activities": [activity.name for activity in activities],
            "flags": flags,
            **({"missing": missing} if missing else {}),
        }
        self._ops = torch.ops.profiler
        self._warm_up()

    def _warm_up(self) -> None:
        """Prepare Kineto, until another profiler of torch wants it: prepared twice, it crashes when the second ends."""
        if other_prepared():
            message = "a torch profiler of the program is prepared or records; torch has room for one"
            raise RuntimeError(message)
        global _kineto_is_set_up
        _kineto_is_set_up = True
        with _kineto_silenced(), _compiler_not_imported(), warnings.catch_warnings():
            # 2.10 warns that the next recording will replace this one; a program may make errors of warnings.
            warnings.simplefilter("ignore")
            self._kineto.prepare_trace()
        _OURS.add(self._kineto.profiler)
        self._prepared = True
        self._guard = give_way_to_others(self._give_way)

    def _cool_down(self) -> None:
        """End the preparation: Kineto ends one only by a recording, and crashes on the next without it."""
        self._prepared = False
        self._kineto.start_trace()
        _end_recording()

    def start(self) -> None:
        """Open the window on this thread.

        Raises:
            RuntimeError: A torch profiler that the program has started since :meth:`prepare` is prepared or records.
        """
        if not self._prepared:
            self._warm_up()
        self._guard.remove()
        self._memory_before = own_memory()
        self._kineto.start_trace()
        self._started = True
        if self._hushes:
            self._quiet.enter_context(hushed())
        self._ranges.watch()
        # torch knows whether this recording is bound to this thread or covers all; the flag set above may be ignored.
        bound = bool(sys.modules["torch"].autograd._profiler_enabled())
        self._thread = threading.get_ident() if bound else 0
        self._description["threads"] = "the starting thread, and what torch runs for it" if bound else "all"
        self._guard = give_way_to_others(self._give_way)
        _OPEN.add(self)

    @property
    def thread(self) -> int:
        """Identifier of the thread that must stop the recording; 0 for any thread."""
        return self._thread

    @property
    def step_marks(self) -> StepMarks:
        """Callbacks that mark every step in Kineto's file, too."""
        return StepMarks(self._begin_step, self._end_step)

    def _begin_step(self, number: int) -> int:
        """Mark the beginning of a step in Kineto's file, as ``torch.profiler`` does.

        By the operators behind ``record_function``: 4 µs instead of 8.
        """
        self._step = self._ops._record_function_enter_new(f"ProfilerStep#{number}", None)
        return number + 1

    def _end_step(self) -> None:
        """Mark the end of the step."""
        step, self._step = self._step, None
        if step is not None:
            with sys.modules["torch"]._C.DisableTorchFunctionSubclass():  # without it, 8 µs more
                self._ops._record_function_exit._RecordFunction(step)

    def stop(self) -> list[Path]:
        """Close the window and have its file written; :meth:`settle` waits until it is.

        Raises:
            RuntimeError: The recording belongs to another thread, or another profiler ended it, so the events are lost.
        """
        self._guard.remove()
        if not self._started:
            if self._prepared:
                self._cool_down()
            self._kineto = None
            return []
        if self._file is None:
            with self._quiet:
                self._close(may_fork=True)
        return [self._path]

    def settle(self) -> None:
        """Wait until the file is whole; raises ``OSError`` where it cannot be."""
        try:
            if self._file is not None:
                self._file.settle()
                self._description["saved_by"] = "a forked child" if self._file.forked else "the process"
        finally:
            self._file = None
            self._kineto = self._result = None  # frees the events: 0.2 s for a million

    def describe(self) -> dict[str, object]:
        """Return versions, activities, and whose operators were recorded."""
        return self._description

    def _close(self, *, may_fork: bool) -> None:
        torch = sys.modules["torch"]
        self._end_step()
        left_open = self._ranges.end_all()
        if left_open and self._journal is not None:
            self._journal.loss("span_not_closed", left_open)
        if not _recording_here(torch, self._thread):
            self._kineto = None
            _OPEN.discard(self)
            if self._thread:  # makes torch forget the recording, so that the next one can start
                with suppress(RuntimeError):
                    _end_recording()
            message = "the recording belongs to another thread or was ended by another torch profiler; nothing is there"
            raise RuntimeError(message)
        with suppress(RuntimeError):  # an error of the device reaches the training by itself
            for module in _devices_initialised(torch):
                module.synchronize()  # so that its work is recorded
        self._result = _end_recording()
        _OPEN.discard(self)
        fork = may_fork and not _devices_initialised(torch) and fork_pays(self._memory_before, own_memory())
        self._file = SavedFile(self._path, self._result.save, fork=fork)

    def _fall_silent(self) -> None:
        """End the inherited recording in a forked child, where it would grow without ever being read."""
        torch: Any = sys.modules["torch"]
        self._guard.remove()
        if own_memory() - self._memory_before < _FEW and not _devices_initialised(torch):
            _end_recording()
            self._quiet.close()
            return
        torch.autograd.profiler._run_on_profiler_stop()
        toggle = getattr(torch.autograd, "_toggle_collection_dynamic", None)
        if toggle is not None:
            toggle(False, {torch.profiler.ProfilerActivity.CPU})  # noqa: FBT003 - torch's function knows no keywords

    def _give_way(self) -> None:
        """End early: the program starts its own torch profiler, and torch runs one at a time."""
        if not self._started:
            self._cool_down()
            return
        if self._journal is not None:
            self._description["ended_early"] = self._journal.ended_early("the program started its own torch profiler")
        with self._quiet:
            self._close(may_fork=False)


#: Collectors whose window is open.
_OPEN: set[TorchCollector] = set()

#: The profilers of torch that collectors prepared.
_OURS: weakref.WeakSet[Any] = weakref.WeakSet()

#: References to the class of torch's profilers besides ours when no other profiler was there; a search takes 20 ms.
_references = -1

#: Whether Kineto has been set up in this process, or in the one it was forked from.
_kineto_is_set_up = False


def _after_fork() -> None:
    if _kineto_is_set_up:
        _leave_without_destructors()
    try:
        while _OPEN:
            _OPEN.pop()._fall_silent()
    except Exception:  # noqa: BLE001 - law 1: the child works on, with a recording that grows as torch's own does
        _LOG.debug("stepscope: torch records on in a forked child", exc_info=True)


def _leave_without_destructors() -> None:
    """Make this forked child end by ``_exit`` once Python has finished and C's streams are flushed.

    A destructor of Kineto waits for a thread that only the parent has: a child that leaves by ``exit`` hangs or aborts.
    The two handlers registered here run before that destructor, the last one registered first.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):  # the GNU library
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fcloseall, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _end_recording() -> Any:  # noqa: ANN401 - Kineto's result
    """End torch's recording directly: up to 2.4, torch's Python profiler also makes Python objects of all events."""
    profiler = sys.modules["torch"].autograd.profiler
    try:
        return profiler._disable_profiler()
    finally:
        profiler._run_on_profiler_stop()


def foreign_profiler(torch: ModuleType) -> bool:
    """Return whether a torch profiler records."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False) or torch.autograd._profiler_enabled())


def other_prepared() -> bool:
    """Return whether a profiler of torch that no collector made is prepared or records; torch knows only of the latter.

    Its ``schedule`` prepares one in the first step that warms up.
    """
    global _references
    kind = sys.modules["torch"].autograd.profiler.profile
    references = sys.getrefcount(kind) - len(_OURS)
    if references == _references and getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    others = [found for found in gc.get_referrers(kind) if isinstance(found, kind) and found not in _OURS]
    _references = -1 if others else references
    return any(found.entered and found.enabled and found.kineto_results is None for found in others)


def give_way_to_others(give_way: Callable[[], None]) -> MethodHooks:
    """Have ``give_way`` called once, just before another profiler of torch prepares or enables itself.

    Without that, the profiler that stops first takes the events of both, and the other has none.

    Returns:
        What calls it, until it is removed.
    """
    hooks = MethodHooks()
    for name in ("_prepare_profiler", "_enable_profiler"):
        hooks.once_before(sys.modules["torch"].autograd.profiler, name, give_way)
    return hooks


def _recording_here(torch: ModuleType, thread: int) -> bool:
    """Return whether stopping now, on this thread, yields events; torch crashes on saving a recording without them."""
    if thread:
        return thread == threading.get_ident() and bool(torch.autograd._profiler_enabled())
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", True))


def recordable(torch: ModuleType, wanted: tuple[Activity, ...]) -> tuple[list[Any], dict[str, str]]:
    """Return torch's members of the activities that can be recorded here, and why the others cannot."""
    supported = {member.name: member for member in torch.profiler.supported_activities()}
    chosen, missing = [], {}
    for activity in wanted or tuple(Activity):
        member = supported.get(_ACTIVITY_NAMES[activity])
        if member is None:
            missing[activity.value] = f"torch {torch.__version__} was built without it"
        elif activity.value in _DEVICE_MODULES and not getattr(torch, activity.value).is_available():
            missing[activity.value] = "this machine has no such device"
        else:
            chosen.append(member)
    if not chosen:
        message = f"none of the activities can be recorded here: {missing}"
        raise RuntimeError(message)
    return chosen, missing if wanted else {}


def _experimental_flags(*, with_stack: bool, profile_memory: bool) -> dict[str, bool]:
    """Return the experimental flags to set, of those that the installed torch knows.

    ``trace_only`` skips Python event objects at stop (the Python stacks need them). ``profile_all_threads`` sees
    training on any thread and may be stopped from any; it drops memory events, so it is off where those are wanted.
    ``verbose`` writes the stacks into the file.
    """
    wanted = {"trace_only": not with_stack, "profile_all_threads": not profile_memory, "verbose": with_stack}
    known = sys.modules["torch"]._C._profiler._ExperimentalConfig.__init__.__doc__ or ""
    return {name: True for name, on in wanted.items() if on and f"{name}: bool" in known}


def _devices_initialised(torch: ModuleType) -> list[Any]:
    modules = (getattr(torch, name, None) for name in _DEVICE_MODULES)
    return [module for module in modules if getattr(module, "is_initialized", bool)()]


@contextmanager
def _compiler_not_imported() -> Iterator[None]:
    """Keep torch from importing its compiler (800 modules, 2 s) only to ask whether the program compiles CUDA graphs.

    Nothing changes for a program that has imported it, and ``import torch._inductor`` works on every thread meanwhile.
    """
    lazy: set[str] = getattr(sys.modules["torch"], "_lazy_modules", set())
    if "torch._inductor" in sys.modules or "_inductor" not in lazy:
        yield
        return
    lazy.discard("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


@contextmanager
def _kineto_silenced() -> Iterator[None]:
    """Keep Kineto's log off standard error; Kineto reads the level once, when it is first prepared."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = _KINETO_SILENT
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)
