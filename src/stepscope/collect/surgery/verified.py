"""The gate: the builds of other libraries that the surgery in this folder was verified on.

The surgery relies on offsets, instructions and memory layouts that no interface promises. On a build where they differ
it would overwrite other data of the training. So the surgery calls :func:`require` first, which raises unless the
library's build id, its architecture and the framework's version stand in :data:`BUILDS`.

``python -m stepscope.collect.surgery.verified [LIBRARY …]`` prints the rows of the libraries of the installed
frameworks, or of the given files. ``README.md`` in this folder says how to verify a build.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Build(NamedTuple):
    """One build that was verified.

    Attributes:
        library: File name; a key of :data:`LIBRARIES`.
        version: ``__version__`` of the framework.
        machine: Architecture, as ``platform.machine()`` spells it.
        identity: ``build-id:`` and the GNU build id in hex; of a library without one, ``sha256:`` and the file's hash.
        verified: What passed with this build.
    """

    library: str
    version: str
    machine: str
    identity: str
    verified: str


BUILDS = (
    Build(
        "libmindspore_profiler.so",
        "2.10.0",
        "x86_64",
        "sha256:3d22703ca92852f1819b320740d7a0bf3e0993394c0d13ec2d8457236e872f26",
        "tests/frameworks/mindspore: test_collect.py, test_run.py",
    ),
    Build(
        "libphi_core.so",
        "3.3.1",
        "x86_64",
        "build-id:1e6f63f4eea28935254288914104118c1935aede",
        "tests/frameworks/paddle: test_threads.py, test_collect.py, test_run.py",
    ),
    Build(
        "libpaddle.so",
        "3.3.1",
        "x86_64",
        "build-id:cd2f762ee6fa16454ae6f37c790e257a5edc98ea",
        "tests/frameworks/paddle: test_collect.py, test_run.py",
    ),
)

#: File name → module of the framework, folder in its package, and the tests to pass before a build is added.
LIBRARIES = {
    "libmindspore_profiler.so": ("mindspore", "lib", "tests/frameworks/mindspore: test_collect.py, test_run.py"),
    "libphi_core.so": ("paddle", "libs", "tests/frameworks/paddle: test_threads.py, test_collect.py, test_run.py"),
    "libpaddle.so": ("paddle", "base", "tests/frameworks/paddle: test_collect.py, test_run.py"),
}

#: ELF's numbers of architectures; all of them little-endian with 64 bits.
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 258: "loongarch64"}
_NOTES, _BUILD_ID = 4, 3
#: Bytes: a header of a file and of a segment, and the most that is read of notes.
_FILE_HEADER, _SEGMENT_HEADER, _MOST_NOTES = 64, 56, 1 << 16
#: Bytes of the largest file that is hashed: at 0.5 GB/s that takes 60 ms, before the window opens.
_MOST_HASHED = 32 << 20


class Unverified(RuntimeError):
    """A library's build is not in :data:`BUILDS`, or cannot be identified."""


def loaded(name: str) -> ctypes.PyDLL:
    """Return a library that the program has loaded, for calls of functions that it exports.

    Args:
        name: A key of :data:`LIBRARIES`; its framework is imported.

    Raises:
        OSError: The program has not loaded the library.
    """
    return ctypes.PyDLL(str(_path(name)), mode=os.RTLD_NOLOAD)


def require(name: str) -> None:
    """Raise unless the build of a library was verified; call it before reading or writing the library's memory.

    Args:
        name: A key of :data:`LIBRARIES`; its framework is imported.

    Raises:
        Unverified: The message holds the library's identity and what to do.
    """
    module = LIBRARIES[name][0]
    version = str(sys.modules[module].__version__)
    try:
        identity, machine = identify(_path(name))
    except (OSError, ValueError) as error:
        message = f"the build of {name} ({module} {version}) cannot be identified: {error}"
        raise Unverified(message) from None
    if not any(build[:4] == (name, version, machine, identity) for build in BUILDS):
        message = (
            f"stepscope was not verified on this build of {name} ({module} {version}, {machine}, {identity}); "
            "stepscope/collect/surgery/README.md says how to verify it"
        )
        raise Unverified(message)


def _path(name: str) -> Path:
    module, folder, _ = LIBRARIES[name]
    return Path(sys.modules[module].__file__ or "").parent / folder / name


def identify(path: Path) -> tuple[str, str]:
    """Return the identity and the architecture of an ELF library, as in :class:`Build`.

    Reads the headers and the notes; the whole file where it has no build id. The answer is cached for the process until
    the file's size or time changes.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not a whole 64-bit little-endian ELF file, or has no build id and is too large to hash.
    """
    state = path.stat()
    return _identify(path, state.st_size, state.st_mtime_ns)


@lru_cache
def _identify(path: Path, size: int, _time: int) -> tuple[str, str]:
    with path.open("rb") as file:
        header = file.read(_FILE_HEADER)
        if len(header) < _FILE_HEADER or header[:6] != b"\x7fELF\x02\x01":
            message = f"{path} is not a 64-bit little-endian ELF file"
            raise ValueError(message)
        number = int.from_bytes(header[18:20], "little")
        machine = _MACHINES.get(number, f"ELF machine {number}")
        for name, kind, content in _notes(file, header, size):
            if name == b"GNU\0" and kind == _BUILD_ID and content:
                return f"build-id:{content.hex()}", machine
        if size > _MOST_HASHED:
            message = f"{path} has no build id and is too large to hash ({size / 1e6:.0f} MB)"
            raise ValueError(message)
        file.seek(0)
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}", machine


def _notes(file: BinaryIO, header: bytes, size: int) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield name, kind and content of the notes in an ELF file's segments."""
    (first,) = struct.unpack_from("<Q", header, 32)
    length, count = struct.unpack_from("<HH", header, 54)
    if count and (length != _SEGMENT_HEADER or first + count * length > size):
        message = f"{file.name} is cut or damaged: its segments lie behind its end"
        raise ValueError(message)
    file.seek(first)
    for segment in struct.iter_unpack("<IIQQQQQQ", file.read(count * length)):
        kind, _, offset, _, _, stored, _, aligned = segment
        if kind != _NOTES:
            continue
        if offset + stored > size:
            message = f"{file.name} is cut or damaged: its notes lie behind its end"
            raise ValueError(message)
        file.seek(offset)
        yield from _notes_of(file.read(min(stored, _MOST_NOTES)), 8 if aligned == 8 else 4)


def _notes_of(segment: bytes, aligned: int) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + 12 <= len(segment):
        name, content, kind = struct.unpack_from("<III", segment, at)
        begin = at + 12 + name + -(at + 12 + name) % aligned
        if begin + content > len(segment):
            return
        yield segment[at + 12 : at + 12 + name], kind, segment[begin : begin + content]
        at = begin + content + -content % aligned


class Installed(NamedTuple):
    """A library of an installed framework, which the surgery works on.

    Attributes:
        path: Its file.
        row: Its row of :data:`BUILDS`, as far as it is known.
        fault: Why it cannot be identified; empty if it can.
    """

    path: Path
    row: Build
    fault: str = ""

    @property
    def verified(self) -> bool:
        """Whether the build was verified: only then is the surgery on."""
        return not self.fault and any(build[:4] == self.row[:4] for build in BUILDS)


def installed(paths: Iterable[Path] = ()) -> Iterator[Installed]:
    """Yield the libraries at the paths given, else those of the installed frameworks, without importing these."""
    from importlib.metadata import packages_distributions, version

    distributions = packages_distributions()
    for path in paths or _found():
        module, _, tests = LIBRARIES.get(path.name, ("", "", ""))
        release = version(distributions[module][0]) if module in distributions else "?"
        try:
            identity, machine = identify(path)
        except (OSError, ValueError) as error:
            yield Installed(path, Build(path.name, release, "?", "?", tests), str(error))
        else:
            yield Installed(path, Build(path.name, release, machine, identity, tests))


def _found() -> Iterator[Path]:
    from importlib.util import find_spec

    for name, (module, folder, _) in LIBRARIES.items():
        found = find_spec(module)
        for package in (found and found.submodule_search_locations) or ():
            path = Path(package) / folder / name
            if path.exists():
                yield path


def _main(paths: list[Path]) -> None:
    """Print the row of every library, for :data:`BUILDS`."""
    for library in installed(paths):
        state = library.fault or ("verified" if library.verified else "not verified")
        sys.stdout.write(f"# {library.path}: {state}\n" + ("" if library.fault else f"    {library.row!r},\n"))


if __name__ == "__main__":
    _main([Path(argument) for argument in sys.argv[1:]])
