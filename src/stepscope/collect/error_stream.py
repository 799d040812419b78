"""Standard error, for what stepscope says in the process of a program, which may give its number to another file."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

_LOG = logging.getLogger("stepscope")
_NUMBER = 2


def is_there() -> bool:
    """Return whether descriptor 2 is a standard stream.

    A program that closes all files, as daemons do, gets the number for the next one that it opens. Python opens files
    for one process only (PEP 446); a standard stream, and what `os.dup2` puts in its place, is for its children, too.
    """
    try:
        return os.get_inheritable(_NUMBER)
    except OSError:
        return False


def say(text: str) -> None:
    """Write a line to standard error, if it is there; standard output belongs to the program."""
    with suppress(OSError, ValueError, AttributeError):
        if not _is_another_file():
            sys.stderr.write(f"stepscope: {' '.join(text.split())}\n")
            sys.stderr.flush()


def _is_another_file() -> bool:
    """Return whether the descriptor of Python's standard error is a file that the program has opened for itself."""
    try:
        return sys.stderr.fileno() == _NUMBER and not is_there()
    except (OSError, ValueError, AttributeError):  # closed, or an object of the program's without a descriptor
        return False


def _may_be_logged(_: logging.LogRecord) -> bool:
    return _LOG.hasHandlers() or not _is_another_file()  # without a handler, Python writes warnings to standard error


_LOG.addFilter(_may_be_logged)
