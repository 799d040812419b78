"""Paddle's recorder of events, without ``paddle.profiler.Profiler`` around it, made safe for programs with threads.

Paddle's own profiler crashes programs in which several threads compute; ``paddle_threads`` says why. So this switches
recording off before Paddle collects the events, and waits until no thread is writing one. On a build of
``libphi_core.so`` that was not verified it calls only functions that Paddle exports, and repairs nothing. Without these
functions a recording begins and ends as under Paddle's own profiler.

Paddle reports on standard error that it writes a file; its log is silenced for that moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.collect.surgery.paddle_threads import ThreadBuffers, wait_until_past
from stepscope.collect.surgery.verified import Unverified, loaded, require

_PHI, _PADDLE = "libphi_core.so", "libpaddle.so"

#: Seconds to wait for threads that write an event. Each needs some µs, but the system may have suspended it.
_PATIENCE = 2.0

_LEVEL = "_ZZN3phi14HostTraceLevel11GetInstanceEvE8instance"
_ENABLE = "_ZN6paddle8platform23EnableHostEventRecorderEv"
_DISABLE = "_ZN6paddle8platform24DisableHostEventRecorderEv"
#: Types of events, as C++ mangles them: ranges, and memory.
_EVENTS = ("11CommonEvent", "14CommonMemEvent")
_LEAST_SEVERITY = "_ZN3fLI17FLAGS_minloglevelE"
#: Level of detail at which Paddle records nothing.
OFF = -1
_WARNING = 1
#: Bit of the CPU in ``ProfilerOptions.trace_switch``; kernels of GPUs are the ``cupti`` collector's.
_CPU = 1


class Tracer:
    """One recording, in memory until :meth:`stop`.

    Args:
        memory: Whether to record memory taken and freed.

    Attributes:
        limits: What does not work on this build of Paddle, and why; empty on a verified one.

    Raises:
        RuntimeError: Another profiler of Paddle exists; Paddle allows one.
    """

    def __init__(self, *, memory: bool) -> None:
        self._core = core()
        self._memory = memory
        self._profiler = create(self._core)
        if self._profiler is None:
            raise RuntimeError(OCCUPIED)
        self._switch = recording_switch()
        self.limits = [limit for limit in (self._switch.limit, log_severity()[1]) if limit]

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: A thread did not finish the event that Paddle writes on it.
        """
        self._switch.make_room()
        self._profiler.prepare()  # switches recording on, although start() discards what is recorded until then
        self._switch.off()
        self._switch.quiet()
        self._profiler.start()
        self._switch.on()
        if self._memory:
            self._core.enable_memory_recorder()

    def stop(self) -> Any:  # noqa: ANN401 - Paddle's _ProfilerResult
        """End, and return what was recorded, which has ``save(path, "pb")``.

        Raises:
            RuntimeError: A thread did not finish the event that Paddle writes on it; what was recorded is lost.
        """
        self.fall_silent()
        profiler, self._profiler = self._profiler, None
        self._switch.quiet()
        return profiler.stop()

    def fall_silent(self) -> None:
        """Record nothing more; what was recorded stays in memory. Safe in a forked child: it takes no lock."""
        if self._memory:
            self._core.disable_memory_recorder()
        self._switch.off()

    def release(self) -> None:
        """Make room for another profiler, without having recorded."""
        self._profiler = None


_CRASH = "the program may crash if other threads compute when a recording begins or ends"
_CRASH_AT_FIRST = "the program may crash if several threads run their first operator at the same moment of a recording"
#: Why nothing is recorded.
SUSPENDED = f"a thread has been suspended for {_PATIENCE:.0f} s, maybe while Paddle wrote an event"
OCCUPIED = "a paddle.profiler.Profiler of the program exists; Paddle has room for one"


def core() -> ModuleType:
    """Return Paddle's module of bindings."""
    return sys.modules["paddle.base.core"]


def create(bindings: Any) -> Any:  # noqa: ANN401 - Paddle's own
    """Return a recorder of Paddle; None if the program has one."""
    options = bindings.ProfilerOptions()
    options.trace_switch = _CPU
    return bindings._Profiler.create(options, [])


def save(result: Any, path: str) -> None:  # noqa: ANN401 - Paddle's _ProfilerResult
    """Write what was recorded as Paddle's protobuf file: a fifth of the size of its JSON, in ns instead of µs."""
    with _log_silent():
        result.save(path, "pb")


def is_whole(path: Path) -> bool:
    """Return whether a protobuf file consists of whole fields; a file cut by a full disk does not."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            file.seek(at)
            head = file.read(20)
            key, behind = _varint(head, 0)
            value, behind = _varint(head, behind)
            if not 0 < behind <= len(head):
                return False
            at += behind + (value if key & 7 == 2 else 0)
    return at == size


def _varint(source: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset and the offset behind it, which is 0 if the number does not end."""
    value = shift = 0
    for byte in source[at:]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, 0


class RecordingSwitch:
    """Switches recording on and off for all threads: the level of detail and the flag that every event looks at.

    Attributes:
        limit: What does not work on this build of Paddle, and why; empty on a verified one.
        level: Paddle's level of detail, :data:`OFF` while it records nothing; None on a build that was not verified.
        buffers: Paddle's vectors of buffers, of each type of event; empty on a build that was not verified.
    """

    def __init__(self) -> None:
        self.limit = "this Paddle does not export what switches recording off: " + _CRASH
        self.level: ctypes.c_int | None = None
        self._enable: Any = None
        self._disable: Any = None
        self.buffers: list[ThreadBuffers] = []
        with contextlib.suppress(OSError, AttributeError, ValueError):
            library = loaded(_PHI)
            enable, disable = library[_ENABLE], library[_DISABLE]
            for function in (enable, disable):
                function.restype, function.argtypes = None, ()
            self._enable, self._disable = enable, disable
            try:
                require(_PHI)
            except Unverified as error:
                self.limit = f"{error}; until then, {_CRASH_AT_FIRST}"
                return
            self.buffers = [ThreadBuffers(library, event) for event in _EVENTS]
            self.level = ctypes.c_int.in_dll(library, _LEVEL)
            self.limit = ""

    def on(self) -> None:
        """Record events, at the level that Paddle's recorder has set."""
        if self._enable is not None:
            self._enable()

    def off(self) -> None:
        """Record neither events that begin nor those that are not complete yet."""
        if self.level is not None:
            self.level.value = OFF
        if self._disable is not None:
            self._disable()

    def make_room(self) -> None:
        """Reserve memory for the buffers of threads that are still to come."""
        if not all(buffers.roomy for buffers in self.buffers):
            self.quiet()

    def quiet(self) -> None:
        """Wait until no thread writes an event, so that Paddle can collect them. Call it while recording is off."""
        if self._disable is None:
            return
        if not wait_until_past(_PATIENCE):
            raise RuntimeError(SUSPENDED)
        for buffers in self.buffers:
            buffers.mend()


@cache
def recording_switch() -> RecordingSwitch:
    """Return the only one of this process: ``ctypes`` creates a class for every library that it opens."""
    return RecordingSwitch()


@cache
def log_severity() -> tuple[ctypes.c_int | None, str]:
    """Return the variable with the least severity that Paddle's log prints; or None and why it is left alone."""
    try:
        require(_PADDLE)
        return ctypes.c_int.in_dll(loaded(_PADDLE), _LEAST_SEVERITY), ""
    except Unverified as error:
        return None, f"{error}; until then, Paddle's log reports the file it writes on standard error"
    except (OSError, ValueError):
        return None, "this Paddle does not export its log's severity: its log reports the file on standard error"


@contextlib.contextmanager
def _log_silent() -> Iterator[None]:
    """Have Paddle's log print only warnings and errors."""
    severity, _ = log_severity()
    if severity is None:
        yield
        return
    before = severity.value
    severity.value = max(before, _WARNING)
    try:
        yield
    finally:
        severity.value = before
