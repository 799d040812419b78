"""Paddle's own recorder of events, without ``paddle.profiler.Profiler`` around it, and what it needs to be harmless.

Paddle's own profiler crashes programs in which more than one thread works, as ``paddle_threads`` says. So recording is
switched off before Paddle collects what was recorded, in the two places that every event looks at, and the collecting
waits until no thread is writing. Where another version of Paddle's library does not export these, the recording begins
and ends as that of Paddle's own profiler does.

Paddle also says on standard error that it writes a file; its log keeps silent for that moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.collect.surgery.paddle_threads import LAID_OUT, Buffers, wait_until_past

#: Seconds for threads to end what they are writing; each needs some µs, but the system may have suspended it.
_PATIENCE = 2.0

_LEVEL = "_ZZN3phi14HostTraceLevel11GetInstanceEvE8instance"
_ENABLE = "_ZN6paddle8platform23EnableHostEventRecorderEv"
_DISABLE = "_ZN6paddle8platform24DisableHostEventRecorderEv"
#: Types of events, as C++ mangles them: ranges, and memory.
_EVENTS = ("11CommonEvent", "14CommonMemEvent")
_LEAST_SEVERITY = "_ZN3fLI17FLAGS_minloglevelE"
_OFF, _WARNING = -1, 1
#: Bit of the CPU in ``ProfilerOptions.trace_switch``; kernels of GPUs are the ``cupti`` collector's.
_CPU = 1


class Tracer:
    """One recording, in memory until :meth:`stop`.

    Args:
        memory: Whether to record memory taken and freed.

    Raises:
        RuntimeError: Another profiler of Paddle's exists; Paddle has room for one.
    """

    def __init__(self, *, memory: bool) -> None:
        self._core = core()
        self._memory = memory
        self._profiler = create(self._core)
        if self._profiler is None:
            raise RuntimeError(OCCUPIED)
        self._switch = _switch()
        self.careful = self._switch.there

    def start(self) -> None:
        """Begin to record.

        Raises:
            RuntimeError: A thread did not come to an end with what Paddle writes.
        """
        self._switch.make_room()
        self._profiler.prepare()  # switches recording on, although what there is by then is thrown away next
        self._switch.off()
        self._switch.quiet()
        self._profiler.start()
        self._switch.on()
        if self._memory:
            self._core.enable_memory_recorder()

    def stop(self) -> Any:  # noqa: ANN401 - Paddle's _ProfilerResult
        """End, and return what was recorded, which has ``save(path, "pb")``.

        Raises:
            RuntimeError: A thread did not come to an end with what Paddle writes; what was recorded is lost.
        """
        self.fall_silent()
        profiler, self._profiler = self._profiler, None
        self._switch.quiet()
        return profiler.stop()

    def fall_silent(self) -> None:
        """Record nothing more; what there is stays in memory. It only writes a few bytes, so it serves after a fork."""
        if self._memory:
            self._core.disable_memory_recorder()
        self._switch.off()

    def release(self) -> None:
        """Make room for another profiler, without having recorded."""
        self._profiler = None


#: Why there is no recording.
SUSPENDED = f"a thread has been suspended for {_PATIENCE:.0f} s, maybe while Paddle wrote an event"
OCCUPIED = "a paddle.profiler.Profiler of the program exists; Paddle has room for one"


def core() -> ModuleType:
    """Return Paddle's module of bindings."""
    return sys.modules["paddle.base.core"]


def create(bindings: Any) -> Any:  # noqa: ANN401 - Paddle's own
    """Return Paddle's recorder; None where the program has one."""
    options = bindings.ProfilerOptions()
    options.trace_switch = _CPU
    return bindings._Profiler.create(options, [])


def save(result: Any, path: str) -> None:  # noqa: ANN401 - Paddle's _ProfilerResult
    """Write what was recorded as Paddle's protobuf file: a fifth of the size of its JSON, in ns instead of µs."""
    with _log_silent():
        result.save(path, "pb")


def is_whole(path: Path) -> bool:
    """Return whether a protobuf file consists of whole fields: one that a full disk has cut does not."""
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
    """Return the number at a place and the place behind it; 0 where it does not end."""
    value = shift = 0
    for byte in source[at:]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, 0


class _Switch:
    """The two places in Paddle's memory that every event looks at: the level of detail, and whether to record."""

    def __init__(self) -> None:
        self._level: ctypes.c_int | None = None
        self._enable: Any = None
        self._disable: Any = None
        self._buffers: list[Buffers] = []
        with contextlib.suppress(OSError, AttributeError, ValueError):
            library = ctypes.PyDLL(str(_package() / "libs" / "libphi_core.so"), mode=os.RTLD_NOLOAD)
            self._enable, self._disable = library[_ENABLE], library[_DISABLE]
            for function in (self._enable, self._disable):
                function.restype, function.argtypes = None, ()
            if sys.modules["paddle"].__version__ in LAID_OUT:
                self._buffers = [Buffers(library, event) for event in _EVENTS]
            self._level = ctypes.c_int.in_dll(library, _LEVEL)

    @property
    def there(self) -> bool:
        return self._level is not None

    def on(self) -> None:
        """Have events recorded, at the level that Paddle's recorder has set."""
        if self._level is not None:
            self._enable()

    def off(self) -> None:
        """Have events that begin, and those that are just going on, leave no trace."""
        if self._level is not None:
            self._level.value = _OFF
            self._disable()

    def make_room(self) -> None:
        """Have room for the buffers of all threads to come."""
        if not all(buffers.roomy for buffers in self._buffers):
            self.quiet()

    def quiet(self) -> None:
        """Wait, while it is off, until Paddle's recorder can be called without harm."""
        if self._level is None:
            return
        if not wait_until_past(_PATIENCE):
            raise RuntimeError(SUSPENDED)
        for buffers in self._buffers:
            buffers.mend()


@cache
def _switch() -> _Switch:
    """Return the one of this process: ``ctypes`` makes a class for every library that it opens."""
    return _Switch()


@cache
def _severity() -> ctypes.c_int | None:
    """Return the least severity that Paddle's log says."""
    try:
        library = ctypes.PyDLL(str(core().libpaddle.__file__), mode=os.RTLD_NOLOAD)
        return ctypes.c_int.in_dll(library, _LEAST_SEVERITY)
    except (OSError, AttributeError, ValueError):
        return None


@contextlib.contextmanager
def _log_silent() -> Iterator[None]:
    """Have Paddle's log say warnings and errors only."""
    severity = _severity()
    if severity is None:
        yield
        return
    before = severity.value
    severity.value = max(before, _WARNING)
    try:
        yield
    finally:
        severity.value = before


def _package() -> Path:
    return Path(sys.modules["paddle"].__file__ or "").parent
