"""The CUPTI library of this process, through ctypes: search, load, version, calls.

It uses the library that the program has loaded, else the one that fits the program's CUDA. Every call releases the GIL
while it runs; otherwise a thread of CUPTI that waits for the GIL could deadlock with a call that waits for that thread.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from stepscope.trace.clock import Anchor
from stepscope.trace.cupti_layout import Layout, cuda_of, layout_of

#: Libraries of CUPTI and of CUDA's runtime by major version of CUDA, the newest first.
_CUPTI = {13: ("libcupti.so.13",), 12: ("libcupti.so.12",), 11: tuple(f"libcupti.so.11.{n}" for n in range(8, -1, -1))}
_RUNTIME = {13: "libcudart.so.13", 12: "libcudart.so.12", 11: "libcudart.so.11.0"}
_DRIVER = "libcuda.so.1"

#: Folders of the library: in CUDA's directory, and in pip's packages.
_FOLDERS = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
_PACKAGES = ("cu13/lib", "cuda_cupti/lib")

#: Domains of ``cuptiGetCallbackName``, and an upper bound for the numbers of their calls.
_DOMAINS = {"driver": 1, "runtime": 2}
_MOST_CALLS = 2048
#: ``CUpti_ActivityThreadIdType``: the operating system's thread id, which all other captures have too.
_SYSTEM_THREADS = 1
#: Suffix of a runtime call's name: its default stream and its version.
_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")


class CuptiError(RuntimeError):
    """CUPTI is missing, has an unknown version, or a call failed; the message says which."""


def driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver if this process has loaded it, which means that it uses CUDA; else None."""
    return _loaded(_DRIVER)


def load_driver() -> ctypes.CDLL:
    """Return NVIDIA's driver; load it if necessary.

    Raises:
        CuptiError: It is not installed.
    """
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        message = f"NVIDIA's driver cannot be loaded ({error})"
        raise CuptiError(message) from None


def _loaded(name: str) -> ctypes.CDLL | None:
    """Return a library that this process has loaded already; loads nothing."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # not on Linux
        return None


class CuptiLibrary:
    """CUPTI.

    Args:
        handle: The loaded library.
        path: Path or name that it was loaded by.

    Raises:
        CuptiError: It returns no version, or one whose record layouts are unknown.
    """

    def __init__(self, handle: ctypes.CDLL, path: str) -> None:
        self.path = path
        self._handle = handle
        number = ctypes.c_uint32()
        self.call("cuptiGetVersion", ctypes.byref(number))
        self.version = number.value
        major = re.search(r"\.so\.(\d+)", path)
        try:
            self.layout: Layout = layout_of(cuda_of(self.version, int(major[1]) if major else 0))
        except ValueError as error:
            raise CuptiError(str(error)) from None

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the library.

        Raises:
            CuptiError: The call returned an error code.
        """
        code = getattr(self._handle, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._handle.cuptiGetResultString(code, ctypes.byref(text))
            said = (text.value or b"no reason").decode(errors="replace")
            message = f"{function} failed: {said} ({code})"
            raise CuptiError(message)

    def anchor(self, tries: int = 5) -> Anchor:
        """Return CUPTI's clock and the system's at one moment: of ``tries`` pairs the one with least uncertainty."""
        return min((self._read_clocks() for _ in range(tries)), key=lambda anchor: anchor.uncertainty)

    def _read_clocks(self) -> Anchor:
        number = ctypes.c_uint64()
        before = time.time_ns()
        self.call("cuptiGetTimestamp", ctypes.byref(number))
        after = time.time_ns()
        return Anchor(number.value, (before + after) // 2, max(after - before + 1, 0) // 2)

    def calls(self, domain: str) -> list[tuple[int, str]]:
        """Return number and name of every call of the domain ``runtime`` or ``driver``, as Kineto spells them."""
        name, found = ctypes.c_char_p(), []
        for number in range(1, _MOST_CALLS):
            if self._handle.cuptiGetCallbackName(_DOMAINS[domain], number, ctypes.byref(name)) or not name.value:
                break
            text = name.value.decode(errors="replace")
            found.append((number, _SUFFIX.sub("", text) if domain == "runtime" else text))
        return found

    def use_system_threads(self) -> int | None:
        """Make records identify threads by the system's id; return the argument of :meth:`restore_threads`."""
        before = ctypes.c_int()
        try:
            self.call("cuptiGetThreadIdType", ctypes.byref(before))
            self.call("cuptiSetThreadIdType", _SYSTEM_THREADS)
        except (CuptiError, AttributeError):
            return None
        return before.value

    def restore_threads(self, before: int | None) -> None:
        """Undo :meth:`use_system_threads`."""
        if before is not None:
            self.call("cuptiSetThreadIdType", before)

    def dropped(self) -> int:
        """Return how many records CUPTI has dropped since the last call."""
        count = ctypes.c_size_t()
        try:
            self.call("cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(count))
        except CuptiError:
            return 0
        return count.value


def torch_is_recording() -> bool:
    """Return whether a profiler of PyTorch is recording, and so owns CUPTI's buffer callbacks."""
    torch = sys.modules.get("torch")
    profiler = getattr(getattr(torch, "autograd", None), "profiler", None)
    enabled = getattr(getattr(torch, "autograd", None), "_profiler_enabled", bool)
    return bool(getattr(profiler, "_is_profiler_enabled", False) or enabled())


def load() -> CuptiLibrary:
    """Return the CUPTI of this process, or the one that fits its CUDA.

    Raises:
        CuptiError: No library was found, or none whose record layouts are known.
    """
    refused = []
    for handle, path in _candidates():
        try:
            return CuptiLibrary(handle, path)
        except CuptiError as error:  # try the next one
            refused.append(f"{path}: {error}")
    message = "; ".join(dict.fromkeys(refused)) or (
        "no libcupti was found beside CUDA, in CUDA_HOME or in the package nvidia-cuda-cupti"
    )
    raise CuptiError(message)


def _candidates() -> Iterator[tuple[ctypes.CDLL, str]]:
    """Yield the loaded libraries; if none is, those that can be loaded, first for the CUDA whose runtime is loaded."""
    majors = sorted(_CUPTI, key=lambda major: (_loaded(_RUNTIME[major]) is None, -major))
    names = [name for major in majors for name in _CUPTI[major]]
    loaded = [(handle, name) for name in names if (handle := _loaded(name)) is not None]
    yield from loaded
    if loaded:  # never load a second CUPTI into a process
        return
    for name in names:
        for path in (*(str(folder / name) for folder in _folders() if (folder / name).exists()), name):
            try:
                yield ctypes.CDLL(path), path
            except OSError:  # missing, or not loadable
                continue


def _folders() -> Iterator[Path]:
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from (Path(root, package) for package in _PACKAGES)
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in [*filter(None, homes), "/usr/local/cuda"]:
        yield from (Path(home, folder) for folder in _FOLDERS)
