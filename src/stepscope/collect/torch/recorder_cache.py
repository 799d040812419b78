"""The files of the recorder's cache: where they lie, and which of them may be loaded.

Loading a library runs its code, and a library that is shorter than it says kills the process with SIGBUS. So a file
is loaded only if nobody else can have written it, and if its size and digest are those of the file beside it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cache
from pathlib import Path

from stepscope.native.recorder.build import BuildError
from stepscope.trace.run_directory import make_private, write_atomically

#: Permission of others to write.
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def directory() -> Path:
    """Return the directory of the cache, ``$XDG_CACHE_HOME/stepscope`` or ``~/.cache/stepscope``."""
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (named if named.is_absolute() else Path.home() / ".cache") / "stepscope"


def open_directory(path: Path) -> None:
    """Make the directory of the cache, 0700, and take back from others the permission to write there.

    Raises:
        OSError: It cannot be made, or would lie in a home directory that does not exist.
        PermissionError: It belongs to another user.
    """
    home = Path.home()
    if path.is_relative_to(home) and not home.exists():
        message = f"the home directory {home} does not exist; set XDG_CACHE_HOME"
        raise FileNotFoundError(None, message)
    make_private(path)
    found = path.stat()
    if found.st_uid != os.geteuid():
        message = f"it belongs to user {found.st_uid}"
        raise PermissionError(None, message)
    if found.st_mode & _OTHERS_WRITE:
        path.chmod(0o700)


def fault(path: Path) -> str | None:
    """Return why a library of the cache must not be loaded; None if it may be."""
    try:
        for place, found in ((path.parent, path.parent.stat()), (path, path.lstat())):
            if found.st_uid not in (os.geteuid(), 0):
                return f"{place} belongs to user {found.st_uid}"
            if found.st_mode & _OTHERS_WRITE:  # as every link
                return f"other users can write to {place}"
        if _known_digest(path, found.st_ino, found.st_ctime_ns, found.st_mtime_ns) != _beside(path).read_bytes():
            return f"{path} is not the file that was built"
    except FileNotFoundError as error:
        return f"{error.filename} does not exist"
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None


def keep(made: Path, path: Path) -> None:
    """Move a library into the cache, digest first; both are on the disk before the name is.

    Raises:
        OSError: The disk is full, or the cache cannot be written.
        BuildError: The file system gives files another owner, so that what is built there is never trusted.
    """
    made.chmod(0o700)
    with made.open("rb") as file:
        os.fsync(file.fileno())
    write_atomically(_beside(path), _digest(made))
    made.replace(path)
    reason = fault(path)
    if reason is not None:
        raise BuildError(reason)


@cache
def _known_digest(path: Path, *_changed: int) -> bytes:
    """Return the digest of a file, which is read again when the numbers say that it changed."""
    return _digest(path)


def _digest(path: Path) -> bytes:
    """Return size and SHA-256 of a file as one line."""
    content = path.read_bytes()
    return f"{len(content)} {hashlib.sha256(content).hexdigest()}\n".encode()


def _beside(path: Path) -> Path:
    return path.with_suffix(".sha256")
