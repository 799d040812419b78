"""Output files that appear complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.errors import OutputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file (0600) beside ``path`` that takes its place at the end of the block.

    Directories that are missing are made (0700). When the block fails, ``path`` is as it was and nothing is left.

    Raises:
        OutputError: The directory cannot be made or the file not written, with the system's reason.
    """
    try:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        except (FileNotFoundError, NotADirectoryError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _refused(path, error) from None
    temporary = Path(name)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _refused(path, error) from error
        raise


def _refused(path: Path, error: OSError) -> OutputError:
    message = f"Cannot write {path}: {error.strerror or error}."
    return OutputError(message, "Free the space, or choose another directory with --output.")
