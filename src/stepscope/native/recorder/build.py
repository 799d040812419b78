"""Build the recorder of PyTorch's operators against an installed torch, with the system's compiler."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent

#: First and last version of torch whose headers the recorder supports.
FIRST, LAST = (2, 1), (2, 14)

#: From this version on, torch's headers need C++20.
_CPP20 = (2, 10)

#: Without NDEBUG, a header of torch reads a member that torch's own build does not have.
_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w")

#: Time limit of a build in seconds; on an idle machine it takes ten.
_PATIENCE = 300.0


class BuildError(RuntimeError):
    """The recorder cannot be built here; the message says why."""


@dataclass(frozen=True)
class Torch:
    """An installed torch.

    Attributes:
        version: ``torch.__version__``.
        directory: Directory of the package.
        new_abi: Whether it was built with the ABI of C++11.
    """

    version: str
    directory: Path
    new_abi: bool

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        numbers = [*self.version.split("+")[0].split("."), "0"][:2]
        major, minor = (int(text) if text.isdigit() else 0 for text in numbers)
        return major, minor

    @cache  # noqa: B019 - one object, alive as long as the process; a window asks six times
    def digest(self) -> str:
        """Return the cache key: equal for the same build of torch and the same sources of the recorder."""
        found = hashlib.sha256(repr((self.version, self.new_abi, platform.machine(), _FLAGS)).encode())
        for path in (*sources(), *sorted(_HERE.glob("*.h"))):
            found.update(path.read_bytes())
        library = self.directory / "lib" / "libtorch_cpu.so"
        if library.exists():  # distinguishes two builds of one version
            status = library.stat()
            found.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        return found.hexdigest()[:16]


def sources() -> list[Path]:
    """Return the files to compile."""
    return sorted(_HERE.glob("*.cpp"))


def unsupported(torch: Torch) -> str | None:
    """Return why the recorder cannot be built for this torch here, or None. Cheap."""
    if not sys.platform.startswith("linux"):
        return "the native recorder is for Linux"
    if not FIRST <= torch.release <= LAST:
        known = " to ".join(f"{major}.{minor}" for major, minor in (FIRST, LAST))
        return f"the native recorder supports torch {known}, not {torch.version}"
    if not (torch.directory / "include" / "ATen" / "record_function.h").exists():
        return f"torch {torch.version} was installed without its headers"
    return None


def knows_groups(torch: Torch) -> bool:
    """Return whether the recorder of this torch knows process groups: their headers are installed."""
    return (torch.directory / "include/torch/csrc/distributed/c10d/ProcessGroup.hpp").exists()


def compiler() -> str | None:
    """Return the path of the compiler: that of the variable CXX, or else the system's; None if none is found."""
    named = os.environ.get("CXX", "")
    return next(filter(None, map(shutil.which, ([named] if named else []) + ["c++", "g++", "clang++"])), None)


def build(torch: Torch, target: Path) -> None:
    """Build the recorder.

    Raises:
        BuildError: No compiler was found, or it fails.
    """
    program = compiler()
    if program is None:
        message = "no C++ compiler was found (c++, g++ or clang++)"
        raise BuildError(message)
    standards = ("c++20", "c++17") if torch.release >= _CPP20 else ("c++17", "c++20")
    first = ""
    for standard in standards:
        failure = _compile(program, standard, torch, target)
        if not failure:
            return
        first = first or failure
    raise BuildError(first)


def _compile(program: str, standard: str, torch: Torch, target: Path) -> str:
    """Compile the files concurrently and link them; return why the compiler failed, or an empty text."""
    options = [f"-std={standard}", *_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_abi)}"]
    include = f"-I{torch.directory / 'include'}"
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        objects = {source: Path(directory) / f"{source.stem}.o" for source in sources()}
        compiling = [
            [program, *options, include, "-c", str(source), "-o", str(made)] for source, made in objects.items()
        ]
        libraries = [f"-L{torch.directory / 'lib'}", "-ltorch_cpu", "-lc10", "-pthread"]
        linking = [program, *options, "-shared", *map(str, objects.values()), "-o", str(target), *libraries]
        return _run(compiling) or _run([linking])


def _run(commands: list[list[str]]) -> str:
    """Run commands concurrently; return why one of them failed, or an empty text."""
    until = time.monotonic() + _PATIENCE
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.extend(map(_start, commands))
        outputs = [process.communicate(timeout=max(0.1, until - time.monotonic()))[1] for process in running]
    except subprocess.TimeoutExpired:
        return f"building the native recorder takes longer than {_PATIENCE:.0f} s"
    except OSError as error:
        return f"the compiler cannot be run: {error}"
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    failed = [said for process, said in zip(running, outputs, strict=True) if process.returncode]
    if not failed:
        return ""
    lines = failed[0].decode(errors="replace").splitlines()
    first = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")
    return f"{Path(commands[0][0]).name} fails ({first.strip()[:300]})"


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    # S603: the user's own compiler, on files of ours and of torch.
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
