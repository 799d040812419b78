"""The CUPTI library of this process, through ctypes: search, load, version, calls.

Loaded is what the program already has, else what belongs to its CUDA. Every call here lets go of Python's lock while
it runs, so that CUPTI's threads and ours never wait for each other through it.
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

#: Where installations put it: CUDA's own directory, and the packages of pip.
_FOLDERS = ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
_PACKAGES = ("cu13/lib", "cuda_cupti/lib")

#: Domains of ``cuptiGetCallbackName``, and a number above every call of theirs.
_DOMAINS = {"driver": 1, "runtime": 2}
_MOST_CALLS = 2048
#: ``CUpti_ActivityThreadIdType``: the system's own number of a thread, as everything else here has it.
_SYSTEM_THREADS = 1
#: Part of a runtime call's name that says since when it is as it is, and which default stream it means.
_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")


class CuptiError(RuntimeError):
    """CUPTI is not there, is too new, or refuses; the message says which."""


def driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver where this process has loaded it: then it uses CUDA."""
    return _loaded(_DRIVER)


def load_driver() -> ctypes.CDLL:
    """Return NVIDIA's driver, loaded now where the program has not come to it.

    Raises:
        CuptiError: There is none.
    """
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        message = f"NVIDIA's driver is not here ({error})"
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
        path: What it was loaded as.

    Raises:
        CuptiError: It does not say its version, or one whose records are not known.
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
            CuptiError: It says that it failed.
        """
        code = getattr(self._handle, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._handle.cuptiGetResultString(code, ctypes.byref(text))
            said = (text.value or b"no reason").decode(errors="replace")
            message = f"{function} failed: {said} ({code})"
            raise CuptiError(message)

    def anchor(self, tries: int = 5) -> Anchor:
        """Return CUPTI's clock and the system's at one moment; the tightest pair of several."""
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
        """Have records name threads by the system's number; return what to give :meth:`restore_threads`."""
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
        """Return how many records CUPTI dropped since it was last asked."""
        count = ctypes.c_size_t()
        try:
            self.call("cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(count))
        except CuptiError:
            return 0
        return count.value


def torch_is_recording() -> bool:
    """Return whether a profiler of PyTorch has CUPTI's buffer callbacks now."""
    torch = sys.modules.get("torch")
    profiler = getattr(getattr(torch, "autograd", None), "profiler", None)
    enabled = getattr(getattr(torch, "autograd", None), "_profiler_enabled", bool)
    return bool(getattr(profiler, "_is_profiler_enabled", False) or enabled())


def load() -> CuptiLibrary:
    """Return the CUPTI of this process, or that which belongs to its CUDA.

    Raises:
        CuptiError: There is none, or none whose records are known.
    """
    refused = []
    for handle, path in _candidates():
        try:
            return CuptiLibrary(handle, path)
        except CuptiError as error:  # the next one may be known
            refused.append(f"{path}: {error}")
    message = "; ".join(dict.fromkeys(refused)) or (
        "no libcupti is found beside CUDA, in CUDA_HOME or in the package nvidia-cuda-cupti"
    )
    raise CuptiError(message)


def _candidates() -> Iterator[tuple[ctypes.CDLL, str]]:
    """Yield what is loaded; else what can be loaded, for the CUDA whose runtime is loaded first."""
    names = [name for major in _majors() for name in _CUPTI[major]]
    loaded = [(handle, name) for name in names if (handle := _loaded(name)) is not None]
    yield from loaded
    if loaded:  # never a second one in the same process
        return
    for name in names:
        for path in (*(str(folder / name) for folder in _folders() if (folder / name).exists()), name):
            try:
                yield ctypes.CDLL(path), path
            except OSError:  # not here
                continue


def _majors() -> list[int]:
    """Return the major versions of CUDA, that of the loaded runtime first."""
    return sorted(_CUPTI, key=lambda major: (_loaded(_RUNTIME[major]) is None, -major))


def _folders() -> Iterator[Path]:
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from (Path(root, package) for package in _PACKAGES)
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in [*filter(None, homes), "/usr/local/cuda"]:
        yield from (Path(home, folder) for folder in _FOLDERS)
