"""MindSpore's runtime profiler: what its Python front end, its pipelines of threads and its graph executor do.

MindSpore looks at ``MS_ENABLE_RUNTIME_PROFILER`` once, at the first step that it marks. From then on it records until
the process ends: into memory, also outside of steps, for the directory that was current at that moment, and with a
summary of every step on standard output. To record one window, this does four things that MindSpore's Python interface
does not offer:

* it begins at any time: it clears the flag *initialised*, so that MindSpore looks at the variable and the directory
  again;
* it ends: it clears the flag *enabled*, so that the memory of a training that goes on does not grow;
* it keeps standard output clean: it puts C++'s ``std::cout`` into an error state while MindSpore writes;
* it keeps all events: ``Model.train`` marks steps, and each mark discards the events since the last one. While this
  records, it replaces these marks by functions that do nothing; stepscope has steps of its own.

Both flags are single bytes. Their offsets are read from the machine code of the two functions that test them, and
compared with what those functions return. On a build that was not verified (:mod:`.verified`), or where the code is
unexpected, this records nothing and says why.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.surgery.verified import loaded, require

#: Variable with which a program asks for the runtime profiler.
VARIABLE = "MS_ENABLE_RUNTIME_PROFILER"
LIBRARY = "libmindspore_profiler.so"
_CLASS = "9mindspore7runtime16ProfilerAnalyzer"

#: x86-64: `movzbl offset(%rdi), %eax`, and `cmpb $0, offset(%rdi)`.
_LOAD_BYTE = re.compile(rb"\x0f\xb6\x87(....)", re.DOTALL)
_TEST_BYTE = re.compile(rb"\x80\xbf(....)\x00", re.DOTALL)
#: Bytes: code to search in each function, the largest distance of the flags, and an upper bound of the object's size.
CODE_BYTES = 64
_NEAR = 16
_SIZE = 4096

_BAD_BIT = 1
_IOS = "St9basic_iosIcSt11char_traitsIcEE"
_UNREAD = ("RuntimeProfilerJson", "RuntimeProfilerSummary")


def asked_for_by_program() -> bool:
    """Return whether the program itself has asked for MindSpore's runtime profiler."""
    return os.environ.get(VARIABLE) == "1"


class RuntimeProfiler:
    """Records one window into ``rank_<RANK_ID>/RuntimeProfilerDetail*.csv`` below a directory."""

    def __init__(self) -> None:
        self._flags: RuntimeFlags | None = None
        self._looked = False
        self._directory = Path()
        self._silenced = MethodHooks()

    def start(self, directory: Path) -> None:
        """Begin to record.

        Args:
            directory: Where to write the files at the end; it exists.

        Raises:
            RuntimeError: This build of MindSpore was not verified or differs from what was expected, or it is recording
                already because the program asked for it.
        """
        flags = RuntimeFlags()
        if flags.enabled:
            message = f"the program has switched MindSpore's runtime profiler on ({VARIABLE})"
            raise RuntimeError(message)
        self._directory = directory
        self._looked = flags.initialised
        flags.initialised = begun = False
        try:
            with _writing_into(directory):
                _expression()._framework_profiler_step_start()
            begun = flags.enabled
        finally:
            if not begun:
                flags.enabled, flags.initialised = False, self._looked
        if not begun:
            message = f"{VARIABLE}=1 does not switch MindSpore's runtime profiler on"
            raise RuntimeError(message)
        self._flags = flags
        module = sys.modules.get("mindspore.train.model")
        for name in ("_framework_profiler_step_start", "_framework_profiler_step_end"):
            if module is not None and hasattr(module, name):  # a mark discards the events since the last one
                self._silenced.put(module, name, lambda: None)

    def stop(self) -> None:
        """End, and write what was recorded, at about 10 µs an event. A second call does nothing."""
        flags, self._flags = self._flags, None
        if flags is None:
            return
        self._silenced.remove()
        expression = _expression()
        try:
            expression._framework_profiler_step_end()
            with cout_failing():
                expression._framework_profiler_clear()
        finally:
            flags.enabled, flags.initialised = False, self._looked
        _tidy(self._directory)


class RuntimeFlags:
    """Two bytes of MindSpore's profiler: whether it records, and whether it has looked at the environment.

    Raises:
        RuntimeError: The build was not verified, or the bytes are not at a plausible offset.
    """

    def __init__(self) -> None:
        require(LIBRARY)
        try:
            library = loaded(LIBRARY)
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
    code = ctypes.string_at(ctypes.cast(function, ctypes.c_void_p).value or 0, CODE_BYTES)
    return [int.from_bytes(found, "little", signed=True) for found in pattern.findall(code)]


def _expression() -> ModuleType:
    return sys.modules["mindspore._c_expression"]


@contextmanager
def _writing_into(directory: Path) -> Iterator[None]:
    """Set the variable, and ``directory`` as where MindSpore writes; restore both afterwards.

    MindSpore looks first at its directory of saved graphs. The current directory cannot be used instead: changing it
    would change it for the program's other threads.
    """
    context = sys.modules["mindspore.context"]._context()
    parameter = _expression().ms_ctx_param.save_graphs_path
    path, variable = context.get_param(parameter), os.environ.get(VARIABLE)
    try:
        context.set_param(parameter, str(directory))
        os.environ[VARIABLE] = "1"
        yield
    finally:
        context.set_param(parameter, path)
        if variable is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = variable


@contextmanager
def cout_failing() -> Iterator[None]:
    """Put C++'s ``std::cout`` into an error state, in which it discards what is written; restore its state afterwards.

    What other threads write to ``std::cout`` meanwhile is lost, too; Python's and C's output is not affected. The
    stream's mask of exceptions is cleared for the time: with a bit of the error in it, the call that sets the state
    would throw a C++ exception, which ends the process.
    """
    library = ctypes.PyDLL("libstdc++.so.6", mode=os.RTLD_NOLOAD)
    address = ctypes.c_void_p(ios_of_cout(library))

    def call(name: str, result: Any, *arguments: int) -> Any:  # noqa: ANN401 - ctypes' own
        return _function(library, name, result, ctypes.c_void_p, *[ctypes.c_int] * len(arguments))(address, *arguments)

    if call(f"_ZNK{_IOS}7rdstateEv", ctypes.c_int):
        yield  # it is in an error state already, which discards everything
        return
    mask = call(f"_ZNK{_IOS}10exceptionsEv", ctypes.c_int)
    call(f"_ZN{_IOS}10exceptionsESt12_Ios_Iostate", None, 0)
    call(f"_ZN{_IOS}5clearESt12_Ios_Iostate", None, _BAD_BIT)
    try:
        yield
    finally:
        call(f"_ZN{_IOS}5clearESt12_Ios_Iostate", None, 0)  # before the mask: with an error set, the mask would throw
        call(f"_ZN{_IOS}10exceptionsESt12_Ios_Iostate", None, mask)


def ios_of_cout(library: ctypes.CDLL) -> int:
    """Return the address of the ``std::ios`` in ``std::cout``: a virtual base, whose offset the virtual table holds."""
    cout = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZSt4cout"))
    table = ctypes.c_void_p.from_address(cout).value or 0
    return cout + ctypes.c_ssize_t.from_address(table - 3 * ctypes.sizeof(ctypes.c_void_p)).value


def _tidy(directory: Path) -> None:
    """Remove the files that repeat the same events, and make the other one writable: MindSpore makes it read-only."""
    for folder in directory.glob("rank_*"):
        folder.chmod(0o700)
        for path in folder.iterdir():
            if path.name.startswith(_UNREAD):
                path.unlink()
            else:
                path.chmod(0o600)
        if not any(folder.iterdir()):
            folder.rmdir()
