"""The built recorder of PyTorch's operators: its cache, and the trial that it passes before a training loads it.

The cache (``$XDG_CACHE_HOME/stepscope``) holds one library for each build of torch and version of our sources. A
library that is missing, or must not be loaded (:mod:`stepscope.collect.torch.recorder_cache`), is built and tried in a
separate process, so that a mismatch crashes only that process. A failed build is remembered for a day, so that not
every training tries again; ``stepscope doctor --build`` does.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from stepscope import __version__
from stepscope.collect.own_process import WORKING_DIRECTORY, own_command, own_environment
from stepscope.collect.torch import recorder_cache
from stepscope.native.recorder import RecorderLibrary
from stepscope.native.recorder.build import BuildError, Torch, build, compiler, unsupported
from stepscope.trace.run_directory import write_atomically

#: ``0`` switches all native parts off, see :mod:`stepscope.native`.
_SWITCH = "STEPSCOPE_NATIVE"

#: Seconds to wait for torch to be imported and tried, and for which a failure is remembered.
_PATIENCE, _REMEMBERED = 120.0, 86_400.0

#: Recorders that this process has loaded: whatever becomes of their files, they serve.
_loaded: set[Path] = set()

#: Where NVIDIA's driver says its version.
DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def installed(torch: ModuleType) -> Torch:
    """Return version, directory and ABI of an imported torch."""
    abi = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)
    return Torch(str(torch.__version__), Path(torch.__file__ or "").parent, bool(abi))


def reason_against(torch: Torch) -> str | None:
    """Return why this torch cannot have a recorder, as far as that is known without building one; else None."""
    if os.environ.get(_SWITCH) == "0":
        return f"switched off by {_SWITCH}=0"
    reason = unsupported(torch)
    if reason is not None or is_built(torch):
        return reason
    return _failure(torch) or (None if compiler() else "no C++ compiler was found (c++, g++ or clang++)")


def is_built(torch: Torch) -> Path | None:
    """Return the path of the recorder for this torch if it is built and may be loaded."""
    path = _path(torch)
    return None if path not in _loaded and recorder_cache.fault(path) else path


def obtain(torch: Torch, *, again: bool = False) -> Path:
    """Return the recorder for this torch; build it (10 s and a trial) if it is missing, or failed and ``again``.

    Raises:
        BuildError: It cannot be built; the message says why.
    """
    if again:
        _failed(torch).unlink(missing_ok=True)
    reason = reason_against(torch)
    if reason is not None:
        raise BuildError(reason)
    path = _path(torch)
    if path in _loaded:
        return path
    try:
        recorder_cache.open_directory(path.parent)
        with _alone(path.with_suffix(".lock")):
            failure = _failure(torch)  # of another process, while this one waited for the lock
            if failure:
                raise BuildError(failure)
            if recorder_cache.fault(path):
                _make(torch, path)
    except OSError as error:
        message = f"the cache {path.parent} cannot be used ({error.strerror or error})"
        raise BuildError(message) from None
    return path


def build_beside(torch: Torch, seconds: float) -> None:
    """Build the recorder in a process that outlives this one, and wait for it for at most ``seconds``.

    Raises:
        OSError: No process can be started.
    """
    process = subprocess.Popen(  # noqa: S603 - our own module
        own_command(__name__, torch.version, str(torch.directory), str(int(torch.new_abi))),
        env=_environment(gpus=False),
        cwd=WORKING_DIRECTORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # marks it as waited for: otherwise Python warns


def reason_against_gpus(torch: Torch) -> str | None:
    """Return why Kineto records GPUs; None if a trial on this machine found both recorders to agree."""
    try:
        return _gpus(torch).read_text(encoding="utf-8") or None
    except OSError:
        return "whether it records this machine's GPUs as Kineto does, `stepscope doctor --build` has not tried yet"


def remember_gpus(torch: Torch, reason: str) -> None:
    """Remember why a trial on this machine's GPUs leaves them to Kineto; empty if the native recorder may record them.

    Raises:
        OSError: The cache cannot be used.
    """
    path = _gpus(torch)
    recorder_cache.open_directory(path.parent)
    write_atomically(path, reason.encode())  # an empty file: the recorders agree


@cache
def load(path: Path) -> RecorderLibrary:
    """Return the functions of a built recorder.

    Raises:
        OSError: It cannot be loaded, or has changed since it was built.
        AttributeError: It is of another version.
    """
    reason = recorder_cache.fault(path)
    if reason is not None:
        raise OSError(reason)
    library = RecorderLibrary(path)
    _loaded.add(path)
    return library


def _make(torch: Torch, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as directory:
        made = Path(directory) / path.name
        try:
            build(torch, made)
            try_out(made)
            recorder_cache.keep(made, path)
        except BuildError as error:
            _failed(torch).write_text(str(error), encoding="utf-8")
            raise


def try_out(made: Path) -> None:
    """Record a trial with a library in a process of its own.

    Raises:
        BuildError: It does not work.
    """
    failure = failure_of("stepscope.collect.torch.native_trial", str(made), gpus=False)
    if failure:
        message = f"the native recorder {failure}"
        raise BuildError(message)


def failure_of(module: str, *arguments: str, gpus: bool) -> str:
    """Run one of our own modules in a separate process, which it may crash.

    Args:
        module: Its name.
        arguments: For it.
        gpus: Whether it sees the machine's GPUs.

    Returns:
        How it failed, as the predicate of a sentence; empty if it did not.
    """
    try:
        # S603: our own module, with the Python that runs us.
        done = subprocess.run(  # noqa: S603
            own_command(module, *arguments),
            env=_environment(gpus=gpus),
            cwd=WORKING_DIRECTORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return f"could not be tried ({type(error).__name__}: {error})"
    if done.returncode < 0:
        return f"takes its process down ({signal.Signals(-done.returncode).name})"
    if done.returncode > 0:
        last = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        return f"fails in a trial: {last[-1]}"
    return ""


def _environment(*, gpus: bool) -> dict[str, str]:
    """Return the environment of processes that build and try."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    needed = [Path(torch).parents[1]] if torch else []
    return own_environment(*needed, OMP_NUM_THREADS="1", **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}))


def _path(torch: Torch) -> Path:
    return recorder_cache.directory() / f"recorder-{torch.version}-{torch.digest()}.so"


def _failure(torch: Torch) -> str:
    """Return why the recorder was not built in the last day; empty if that is not known."""
    failed = _failed(torch)
    with suppress(OSError):
        if abs(time.time() - failed.stat().st_mtime) < _REMEMBERED:
            return failed.read_text(encoding="utf-8", errors="replace")
    return ""


def _failed(torch: Torch) -> Path:
    return _path(torch).with_suffix(".failed")


def _gpus(torch: Torch) -> Path:
    """Return the file of a trial's result; another driver or version of stepscope needs another trial."""
    found = hashlib.sha256(__version__.encode())
    with suppress(OSError):  # WSL has no such file
        found.update(DRIVER_VERSION.read_bytes())
    return _path(torch).with_suffix(f".gpus-{found.hexdigest()[:16]}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process build at a time; without file locks all may build, and the last library wins."""
    with path.open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    with suppress(BuildError):  # it is remembered
        obtain(Torch(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "1"))
