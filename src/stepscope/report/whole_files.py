"""Output files that appear complete or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.errors import OutputError
from stepscope.trace import run_directory


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file (0600) beside ``path`` that takes its place at the end of the block.

    Directories that are missing are made (0700). When the block fails, ``path`` is as it was and nothing is left.

    Raises:
        OutputError: The directory cannot be made or the file not written, with the system's reason.
    """
    with _refused(path), run_directory.replacing(path) as temporary:
        yield temporary


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file (0600); directories and errors as with :func:`replacing`, which it is faster than."""
    with _refused(path):
        run_directory.write_atomically(path, content)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        if not path.parent.is_dir():
            run_directory.make_private(path.parent)
        yield
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError) -> OutputError:
    """Return the error that says why a file or directory cannot be written: what stands in its way, if something does.

    Args:
        path: What was to be written.
        error: What the system says.
    """
    file = next((above for above in path.parents if above.exists() and not above.is_dir()), None)
    if file is None and not path.is_dir():
        message = f"Cannot write {path}: {error.strerror or error}."
        return OutputError(message, "Free the space, or choose another directory with --output.")
    message = f"Cannot write {path}: {'it is a directory' if file is None else f'{file} is a file'}."
    return OutputError(message, "Remove or rename what is there, or choose another path.")
