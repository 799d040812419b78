"""Captures in an object store or another file system that fsspec knows: ``s3://``, ``gs://``, ``memory://``.

What lies there is found out by the heads of the files, in a tree of the same names, so that a bucket is looked at as a
directory is; then whole files are fetched, those of one rank at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from stepscope.errors import InputError, NotARunError, NotATraceError, UsageError
from stepscope.read import Capture, sniff
from stepscope.read.common.source import MOST_ENTRIES

#: Bytes of a file that say what it is, and where these do not suffice; and files whose heads are fetched at once.
_HEAD, _LONG_HEAD, _AT_ONCE = 256 << 10, 16 << 20, 100
#: What file systems call the version of a file, the surest first.
_STAMPS = ("ETag", "etag", "e_tag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
_FileSystem: TypeAlias = Any  # fsspec has no types


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address.

    Attributes:
        address: Where it is, with the protocol.
        path: Where it lies below the address that was named.
        size: Its bytes.
        stamp: Changes whenever its content does: entity tag, else time of modification.
    """

    address: str
    path: str
    size: int
    stamp: str


def is_address(text: str) -> bool:
    """Return whether a text names an address rather than a path."""
    return "://" in text


def local_path(text: str) -> Path | None:
    """Return the path that a text or an address of this machine names; None for an address elsewhere."""
    if not is_address(text):
        return Path(text)
    protocol, _, path = text.partition("://")
    return Path(path) if protocol in ("file", "local") else None


def found_at(address: str, directory: Path) -> tuple[list[Capture], dict[Path, RemoteFile]]:
    """Return the captures at an address, and the file that each path of theirs stands for.

    Args:
        address: A file or a directory.
        directory: An empty directory, in which the heads of the files are put.

    Raises:
        NotARunError: Nothing is there.
        NotATraceError: No capture is there.
        InputError: It cannot be read.
        UsageError: The protocol is unknown, or its package is not installed.
    """
    files = _listed(address)
    places = {directory / file.path: file for file in files}
    top = next(iter(places)) if len(files) == 1 and files[0].address == address else directory
    with _said(address) as system:
        _fetch_heads(system, places, _HEAD)
        captures, error = _looked(top)
        if error is not None or any(one.fault for one in captures):
            # A list of all process groups of a large job can be longer than a head.
            _fetch_heads(system, {path: file for path, file in places.items() if file.size > _HEAD}, _LONG_HEAD)
            captures, error = _looked(top)
    if error is not None:
        raise NotATraceError(error.message.replace(str(top), address), error.remedy)
    return captures, places


def _looked(top: Path) -> tuple[list[Capture], InputError | None]:
    try:
        return sniff.look(top), None
    except InputError as error:
        return [], error


def files_of(capture: Capture, places: Mapping[Path, RemoteFile]) -> list[RemoteFile]:
    """Return the files to fetch of a capture: all of its directory, where it is one."""
    if capture.format not in sniff.OF_DIRECTORIES:
        return [places[path] for path in capture.all]
    return [file for path, file in places.items() if capture.root in (path, *path.parents)]


def fetch(files: Sequence[RemoteFile], directory: Path) -> None:
    """Fetch whole files into a directory, with the names of the directories that they lie in.

    Raises:
        InputError: One cannot be read.
        UsageError: The package of the protocol is not installed.
    """
    if files:
        with _said(files[0].address) as system:
            _fetch(system, {directory / file.path: file for file in files})


def _listed(address: str) -> list[RemoteFile]:
    with _said(address) as system:
        root = system._strip_protocol(address).rstrip("/")
        found: dict[str, dict[str, Any]] = system.find(root, detail=True)
        if len(found) > MOST_ENTRIES:
            message = f"{address} holds more than {MOST_ENTRIES:,} files, too many to search."
            raise NotATraceError(message, "Name the directory that holds the captures.")
        files = []
        for name, facts in found.items():
            path = name[len(root) :].lstrip("/") or PurePosixPath(name).name
            if facts.get("type") != "directory" and not any(part[:1] == "." for part in path.split("/")):
                stamp = next((str(facts[key]) for key in _STAMPS if facts.get(key)), "")
                whole = address if name == root else system.unstrip_protocol(name)
                files.append(RemoteFile(whole, path, int(facts.get("size") or 0), stamp))
    if not files:
        message = f"{address} does not exist, or holds no file."
        raise NotARunError(message, "Name a capture, or a directory of captures.")
    return sorted(files, key=lambda file: file.path)


@contextmanager
def _said(address: str) -> Iterator[_FileSystem]:
    """Give the file system of an address; what goes wrong with it is said as an error of ours."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        message = f"{address} needs the package fsspec."
        raise UsageError(message, "Install it: pip install 'stepscope[addresses]'.") from None
    protocol = address.partition("://")[0]
    try:
        system, _ = url_to_fs(address)
    except (ImportError, ValueError) as error:
        message = f"Nothing here reads {protocol}://: {error}."
        raise UsageError(message, "Install the package of that protocol, such as s3fs, gcsfs or adlfs.") from None
    try:
        yield system
    except (InputError, UsageError):
        raise
    except Exception as error:  # noqa: BLE001 - each package has exceptions of its own
        text = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"{address} cannot be read: {text}."
        raise InputError(message, "Check the address, the network and the credentials.") from None


def _fetch_heads(system: _FileSystem, places: Mapping[Path, RemoteFile], size: int) -> None:
    wanted = list(places.items())
    for first in range(0, len(wanted), _AT_ONCE):
        some = wanted[first : first + _AT_ONCE]
        names = [system._strip_protocol(file.address) for _, file in some]
        heads = system.cat_ranges(names, [0] * len(some), [min(file.size, size) for _, file in some], on_error="raise")
        for (path, _), head in zip(some, heads, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(head)


def _fetch(system: _FileSystem, places: Mapping[Path, RemoteFile]) -> None:
    for path, file in places.items():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not file.size:
            path.touch()
    some = [(path, file) for path, file in places.items() if file.size]
    if some:
        system.get([system._strip_protocol(file.address) for _, file in some], [str(path) for path, _ in some])
