"""Calls of Python functions and of modules, noted by the native recorder around the operators that they run.

CPython reports every call to a profile function (``PyEval_SetProfile``). Ours is C++, formats each name once, and needs
no lock besides the GIL, which its caller holds. It sees the starting thread, threads that begin later and, from Python
3.12 on, threads that run already.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.native.recorder import NativeRecording, PythonCalls, RecorderLibrary

_HERE = Path(__file__).parents[2]
_OURS = f"{_HERE}{os.sep}"
#: Files and folders whose calls belong to the recording, not to the training.
#: Not ``host/data_waits.py``: what a loader calls is the training's, its dataset among it.
_HOST = ("host/garbage.py", "host/host_counters.py", "host/python_stacks.py", "host/sampling.py")
_ENGINE_PLACES = ("session/session.py", "session/window.py", "cuda/", "torch/", *_HOST)
#: Functions that these call, including the framework's, do not belong to the training either.
_ENGINE = tuple(f"{_HERE}/collect/{name}" for name in _ENGINE_PLACES)

#: Why calls of Python functions are not recorded where the program, or cProfile, watches them.
OWN_PROFILE_FUNCTION = "the program has a profile function of its own (sys.setprofile)"


def cannot_watch() -> str | None:
    """Return why Python calls cannot be recorded here, or None."""
    if sys.getprofile() is not None:
        return OWN_PROFILE_FUNCTION
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python runs without its lock"
    return None


class PythonWatch:
    """Watches calls of Python functions, and of ``torch.nn.Module``, during one recording."""

    def __init__(self, library: RecorderLibrary, *, functions: bool, modules: bool) -> None:
        self._library = library
        self._functions, self._modules = functions, modules
        self._watching = False

    def start(self, recording: NativeRecording) -> str:
        """Begin; return why calls are not recorded, or an empty text."""
        reason = cannot_watch()
        if reason is not None:
            return reason
        module: Any = sys.modules["torch"].nn.Module
        code = getattr(module.__call__, "__code__", None)
        calls = PythonCalls(
            functions=self._functions,
            modules=self._modules,
            roots=_lines(_roots()),
            ours=_lines([_OURS]),
            engine=_lines(_ENGINE),
            module_call=id(code) if code is not None else None,
        )
        self._watching = True
        if threading.getprofile() is None:
            every = getattr(threading, "setprofile_all_threads", threading.setprofile)
            every(self._begin_thread)
        try:
            recording.watch_python(calls)
        except OSError as error:
            self.stop()
            return f"this Python does not tell of its calls: {error.strerror}"
        return ""

    def stop(self) -> None:
        """Stop watching."""
        if not self._watching:
            return
        self._watching = False
        if threading.getprofile() == self._begin_thread:
            threading.setprofile(None)
        self._library.ignore_python()

    def _begin_thread(self, _frame: FrameType, _event: str, _argument: object) -> None:
        """Become the profile function of a thread."""
        sys.setprofile(None)
        if self._watching and not threading.current_thread().name.startswith("stepscope-"):
            self._library.watch_thread()


def _roots() -> list[str]:
    """Return the import directories, longest first; PyTorch writes names of files relative to them."""
    roots = {os.path.abspath(entry or ".") for entry in sys.path} | set(sysconfig.get_paths().values())  # noqa: PTH100
    whole = [root + os.sep for root in roots if not Path(root, "__init__.py").exists()]
    return sorted(whole, key=len, reverse=True)


def _lines(texts: Iterable[str]) -> bytes:
    return "\n".join(texts).encode("utf-8", "replace")
