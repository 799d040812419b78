"""MindSpore's own runtime profiler: what its Python front end, its pipelines of threads and its graph executor do.

MindSpore looks at ``MS_ENABLE_RUNTIME_PROFILER`` once, at the first step it marks, and from then on records for good:
into memory, outside of steps too, with a summary of every step on standard output at the end, and into the directory
that was current at that moment. A tool that comes and goes needs four things that its Python interface has not:

* it begins at any time: the flag *initialised* is cleared, so that MindSpore looks at the variable and the directory
  once more;
* it ends: the flag *enabled* is cleared, so that nothing piles up in the memory of a training that runs on;
* nothing reaches standard output: C++'s ``std::cout`` is told to be full while MindSpore writes;
* nothing is dropped: ``Model.train`` marks steps, and each mark throws away what lies between two of them. While this
  records, it marks none: steps are stepscope's own.

Both flags are single bytes; where they lie is read from the machine code of the two functions that test them, and
checked against what those functions say. Where anything is not as expected, this records nothing and says why.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks

_VARIABLE = "MS_ENABLE_RUNTIME_PROFILER"
_LIBRARY = "libmindspore_profiler.so"
_CLASS = "9mindspore7runtime16ProfilerAnalyzer"

#: x86-64: `movzbl offset(%rdi), %eax`, and `cmpb $0, offset(%rdi)`.
_LOAD_BYTE = re.compile(rb"\x0f\xb6\x87(....)", re.DOTALL)
_TEST_BYTE = re.compile(rb"\x80\xbf(....)\x00", re.DOTALL)
#: Bytes of code that are looked at, and how far apart the flags may lie.
_CODE = 64
_NEAR = 16
_SIZE = 4096

_BAD_BIT = 1
_UNREAD = ("RuntimeProfilerJson", "RuntimeProfilerSummary")


def asked_for_by_program() -> bool:
    """Return whether the program asks for MindSpore's runtime profiler itself."""
    return os.environ.get(_VARIABLE) == "1"


class RuntimeProfiler:
    """Records one window into ``rank_<RANK_ID>/RuntimeProfilerDetail*.csv`` below a directory."""

    def __init__(self) -> None:
        self._flags: _Flags | None = None
        self._directory = Path()
        self._silenced = MethodHooks()

    def start(self, directory: Path) -> None:
        """Begin to record.

        Args:
            directory: Takes the files at the end; it exists.

        Raises:
            RuntimeError: This MindSpore cannot, or is recording already because the program asked for it.
        """
        flags = _Flags()
        if flags.enabled:
            message = f"the program has switched MindSpore's runtime profiler on ({_VARIABLE})"
            raise RuntimeError(message)
        self._directory = directory
        flags.initialised = False
        with _writing_into(directory):
            _expression()._framework_profiler_step_start()
        if not flags.enabled:
            message = f"{_VARIABLE}=1 does not switch MindSpore's runtime profiler on"
            raise RuntimeError(message)
        self._flags = flags
        self._silence_steps()

    def stop(self) -> None:
        """End, and write what was recorded. Takes about 10 µs for each event; a second call does nothing."""
        flags, self._flags = self._flags, None
        if flags is None:
            return
        self._silenced.remove()
        expression = _expression()
        try:
            expression._framework_profiler_step_end()
            with _standard_output_full():
                expression._framework_profiler_clear()
        finally:
            flags.enabled = False
        _tidy(self._directory)

    def _silence_steps(self) -> None:
        """Have ``Model.train`` mark no steps: a mark drops the events since the last one."""
        module = sys.modules.get("mindspore.train.model")
        for name in ("_framework_profiler_step_start", "_framework_profiler_step_end"):
            if module is not None and hasattr(module, name):
                self._silenced.put(module, name, _no_mark)


def _no_mark() -> None:
    """Stand in for MindSpore's mark of a step."""


class _Flags:
    """Two bytes of MindSpore's profiler: whether it records, and whether it has looked at the environment.

    Raises:
        RuntimeError: They are not where they are expected.
    """

    def __init__(self) -> None:
        path = Path(sys.modules["mindspore"].__file__ or "").parent / "lib" / _LIBRARY
        try:
            library = ctypes.PyDLL(str(path), mode=os.RTLD_NOLOAD)
            find = _function(library, f"_ZN{_CLASS}11GetInstanceEv", ctypes.c_void_p)
            is_enabled = _function(library, f"_ZNK{_CLASS}15profiler_enableEv", ctypes.c_bool, ctypes.c_void_p)
            initialise = _function(library, f"_ZN{_CLASS}10InitializeEv", None, ctypes.c_void_p)
        except (OSError, AttributeError) as error:
            message = f"this MindSpore has no runtime profiler that can be switched off again ({error})"
            raise RuntimeError(message) from None
        self._object: int = find()
        self._is_enabled = is_enabled
        enabled, initialised = _offsets(_LOAD_BYTE, is_enabled), _offsets(_TEST_BYTE, initialise)
        self._enabled = self._initialised = 0
        if enabled and initialised and 0 < enabled[0] < _SIZE and abs(initialised[0] - enabled[0]) < _NEAR:
            self._enabled, self._initialised = enabled[0], initialised[0]
        if not self._enabled or any(self._byte(at).value > 1 for at in (self._enabled, self._initialised)):
            message = "the runtime profiler of this MindSpore could not be switched off again"
            raise RuntimeError(message)

    @property
    def enabled(self) -> bool:
        """Whether MindSpore records."""
        return bool(self._is_enabled(self._object))

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._byte(self._enabled).value = value

    @property
    def initialised(self) -> bool:
        """Whether MindSpore has looked at the environment."""
        return bool(self._byte(self._initialised).value)

    @initialised.setter
    def initialised(self, value: bool) -> None:
        self._byte(self._initialised).value = value

    def _byte(self, offset: int) -> ctypes.c_ubyte:
        return ctypes.c_ubyte.from_address(self._object + offset)


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:  # noqa: ANN401 - ctypes' own
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def _offsets(pattern: re.Pattern[bytes], function: Any) -> list[int]:  # noqa: ANN401 - ctypes' own
    code = ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value or 0, _CODE)
    return [int.from_bytes(found, "little", signed=True) for found in pattern.findall(code)]


def _expression() -> ModuleType:
    return sys.modules["mindspore._c_expression"]


@contextmanager
def _writing_into(directory: Path) -> Iterator[None]:
    """Have MindSpore find the variable set and ``directory`` where it writes; both are as before afterwards.

    The directory of saved graphs is where it looks first; the current one would change under other threads.
    """
    context = sys.modules["mindspore.context"]._context()
    parameter = _expression().ms_ctx_param.save_graphs_path
    path, variable = context.get_param(parameter), os.environ.get(_VARIABLE)
    context.set_param(parameter, str(directory))
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        context.set_param(parameter, path)
        if variable is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = variable


@contextmanager
def _standard_output_full() -> Iterator[None]:
    """Have C++ write nothing to standard output, as when it is full; Python's and C's output is not touched."""
    set_state = _cout_state()
    set_state(_BAD_BIT)
    try:
        yield
    finally:
        set_state(0)


def _cout_state() -> Callable[[int], None]:
    """Return ``std::cout.clear(state)``; its state lies in a virtual base, whose offset its virtual table holds."""
    library = ctypes.PyDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD)
    cout = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4cout"))
    table = ctypes.c_void_p.from_address(cout).value or 0
    base = cout + ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_void_p)).value
    clear = library._ZNSt9basic_iosIcSt11char_traitsIcEE5clearESt12_Ios_Iostate
    clear.restype, clear.argtypes = None, (ctypes.c_void_p, ctypes.c_int)
    return lambda state: clear(base, state)


def _tidy(directory: Path) -> None:
    """Remove the files that say the same again, and let the owner write to the other: MindSpore makes it read-only."""
    for folder in directory.glob("rank_*"):
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.name.startswith(_UNREAD):
                path.unlink()
            else:
                path.chmod(0o600)
        if not any(folder.iterdir()):
            folder.rmdir()
