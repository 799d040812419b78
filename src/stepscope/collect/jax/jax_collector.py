"""What JAX does: compiled programs with their operations, the program's own annotations and memory, recorded by XLA.

The window is a profiler session of jaxlib, without what ``jax.profiler.start_trace`` adds to it: no ``trace.json.gz``,
no port, and Python calls only with the option for stacks. XLA keeps what it records in its own memory and gives it when
the window ends, as ``capture/jax/<host>.xplane.pb``: an XSpace, the same bytes that ``jax.profiler`` writes. No event
becomes a Python object here. With the option for memory, ``capture/jax/memory.pb.gz`` holds what is alive at the end
(a gzipped pprof profile). A killed process has written neither; only its journal remains.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.collect.hooks.only_place import OnlyPlace
from stepscope.collect.options import Activity, Options
from stepscope.collect.protocol import Context
from stepscope.trace.run_directory import write_atomically
from stepscope.trace.xplane_marks import NATIVE_ID, THREAD_MARK

#: The module of jaxlib that holds the profiler's session.
_PROFILER = "jaxlib._profiler"
#: Levels of XLA's host tracer: all of its events (including operations on a CPU), or annotations only.
_EVERYTHING, _ANNOTATIONS = 2, 1
#: Seconds to wait at the end for dispatched work; bounded, because a collective may wait for a dead rank.
_PATIENCE = 5.0
_PAUSE = 0.0005


class JaxCollector(OnlyPlace):
    """Records one window into ``capture/jax/``."""

    name = "jax"
    framework = "jax"

    def __init__(self) -> None:
        super().__init__()
        self._directory = Path()
        self._options = Options()
        self._session: Any = None
        self._files: list[Path] = []

    def available(self) -> str | None:
        """Return why JAX cannot record now, or None."""
        if "jax" not in sys.modules:
            return "the program has not imported jax"
        if not hasattr(sys.modules.get(_PROFILER), "ProfilerSession"):
            return "this jaxlib has its profiler in a place that is not known here"
        if _profiler().TraceMe.is_enabled():
            return "another profiler of JAX is recording; XLA has room for one"
        return None

    def prepare(self, context: Context) -> None:
        """Set the directory. Does not initialise JAX's backends: the program may still configure them."""
        self._options = context.options
        self._directory = context.capture / "jax"
        self._journal = context.journal
        self._description = {"version": str(sys.modules["jax"].__version__)}

    def start(self) -> None:
        """Open the window.

        Raises:
            RuntimeError: The program has started its own profiler since :meth:`prepare`.
        """
        if reason := self.available():
            raise RuntimeError(reason)
        self._directory.mkdir(mode=0o700)
        if _backends_exist():
            self._description["backend"] = sys.modules["jax"].default_backend()
        else:
            self._description["note"] = (
                "JAX had no backend yet: work of a GPU or TPU that it finds later may be missing"
            )
        self._begin()
        give_way = partial(self._give_way, "the program started a profiler of JAX")
        self._guard.once_before(_profiler(), "ProfilerSession", give_way)
        self._opened()

    def _begin(self) -> None:
        profiler, options = _profiler(), _profiler().ProfileOptions()
        host = not self._options.activities or Activity.CPU in self._options.activities
        levels = {  # those of ``jax.profiler``, except for Python calls
            "host_tracer_level": _EVERYTHING if host else _ANNOTATIONS,
            "python_tracer_level": int(self._options.with_stack),
        }
        for name, level in levels.items():
            setattr(options, name, level)
        self._description.update(levels)
        profiler.clear_metadata()
        for name in ("jax", "jaxlib"):  # as ``jax.profiler`` does
            profiler.set_metadata(f"{name}_version", str(sys.modules[name].__version__))
        self._session = profiler.ProfilerSession(options)
        with profiler.TraceMe(THREAD_MARK, **{NATIVE_ID: threading.get_native_id()}):
            pass

    def _end(self) -> None:
        """Wait for the dispatched work, and write XLA's recording."""
        session, self._session = self._session, None
        if session is None or os.getpid() != self._process:
            return
        self._closed()
        late = _wait_for_arrays()
        if late:
            self._description["not_waited_for"] = f"{late} arrays were not computed within {_PATIENCE:.0f} s"
        memory = _memory() if self._options.profile_memory else b""
        space = session.stop()
        _profiler().clear_metadata()
        host = socket.gethostname().replace(os.sep, "_") or "host"
        self._write(f"{host}.xplane.pb", space)
        if memory:
            self._write("memory.pb.gz", memory)

    def _written(self) -> list[Path]:
        return self._files

    def _write(self, name: str, content: bytes) -> None:
        path = self._directory / name
        write_atomically(path, content)
        self._files.append(path)

    def _release(self) -> None:
        self._guard.remove()

    def _fall_silent(self) -> None:
        """Remove the hooks in a forked child, where JAX cannot run and its recording is never read."""
        self._release()
        if self._options.with_stack:
            sys.setprofile(None)  # XLA's hook on the child's only thread, which would record every call
        _LEFT.append(self._session)
        self._session = None


#: The parent's sessions in a forked child, never freed: XLA's destructor would wait for threads that a child lacks.
_LEFT: list[Any] = []


def _profiler() -> Any:  # noqa: ANN401 - a module of jaxlib
    return sys.modules[_PROFILER]


def _backends_exist() -> bool:
    """Return whether JAX has initialised its backends, without initialising them."""
    return bool(sys.modules["jax._src.xla_bridge"].backends_are_initialized())


def _live_arrays() -> Iterator[Any]:
    if _backends_exist():
        for backend in sys.modules["jax._src.xla_bridge"].backends().values():
            yield from backend.live_arrays()


def _wait_for_arrays() -> int:
    """Wait until every live array is computed, so that its work is recorded; return how many are not.

    The error of an array whose work has failed reaches the training by itself.
    """
    deadline = time.monotonic() + _PATIENCE
    late = 0
    for array in _live_arrays():
        with suppress(Exception):
            while not array.is_deleted() and not array.is_ready():
                if time.monotonic() > deadline:
                    late += 1
                    break
                time.sleep(_PAUSE)
    return late


def _memory() -> bytes:
    """Return the live memory of the default backend's devices as gzipped pprof; empty without a backend."""
    return bytes(sys.modules["jax"].profiler.device_memory_profile()) if _backends_exist() else b""
