"""The bytes of a trace file, block by block: plain or gzip, whole or cut, and never more than the file deserves."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from isal import isal_zlib

from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.trace.losses import LossLedger

#: Called with bytes of the file read so far, and its size.
Progress: TypeAlias = Callable[[int, int], None]

#: Bytes per block: small enough to stay in the cache until they are parsed, large enough that Python's share is nil.
BLOCK = 4 << 20

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31
_GZIP_PIECE = 128 << 10

# JSON traces compress 8 to 40 times. Deflate can reach 1032, with nothing but repetition; that is no trace.
_MAX_RATIO = 250
_RATIO_FREE = 256 << 20


def open_trace(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises:
        InputError: It does not exist or may not be read.
        NotATraceError: It is a directory, pipe, socket or device.
    """
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not hang before the test below refuses it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise InputError(message, "Check the path and its permissions.") from None
    except ValueError:
        message = f"{str(path)!r} is no path."
        raise InputError(message, "Check the path.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"{path} is not a regular file."
        raise NotATraceError(message, "Name a trace file; stepscope does not read from directories, pipes or devices.")
    return os.fdopen(descriptor, "rb", buffering=0)


@dataclass(frozen=True)
class Capture:
    """The files of one rank that lie in one directory.

    Attributes:
        root: The directory.
        files: Paths by sort, in order of name.
        ranks: Ranks that the names of the files say.
    """

    root: Path
    files: dict[str, list[Path]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)

    def of(self, *sorts: str) -> list[Path]:
        """Return the files of these sorts."""
        return [path for sort in sorts for path in self.files.get(sort, [])]

    @property
    def all(self) -> list[Path]:
        """Every file that the reader looks at."""
        return self.of(*self.files)


def files_of(capture: Path) -> list[Path]:
    """Return the files of a capture, in order of name: itself, or all below it where it is a directory.

    Hidden ones are still being written.
    """
    if not capture.is_dir():
        return [capture]
    return sorted(path for path in capture.rglob("[!.]*") if path.is_file())


def tell_all(path: Path, progress: Progress | None) -> None:
    """Tell that the whole of a file was read."""
    if progress is not None:
        size = path.stat().st_size
        progress(size, size)


def read_blocks(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, inflated where it is gzip, in blocks of about :data:`BLOCK` bytes.

    A gzip file that ends early or is damaged yields what comes before, and a row in the ledger.

    Raises:
        InputError: The file cannot be opened or read.
        DamagedTraceError: It is empty, or expands as no trace does.
    """
    with open_trace(path) as file:
        total = os.fstat(file.fileno()).st_size
        blocks = _raw_blocks(file, path, total, progress)
        first = next(blocks, b"")
        if not first:
            message = f"{path} is empty."
            raise DamagedTraceError(message, "Record it again; the recorder was stopped before it wrote anything.")
        if first.startswith(_GZIP_MAGIC):
            yield from _inflated(first, blocks, path, ledger)
        else:
            yield first
            yield from blocks


def _raw_blocks(file: IO[bytes], path: Path, total: int, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    while True:
        try:
            block = file.read(BLOCK)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}."
            raise InputError(message, "Check the disk or the network share, and try again.") from None
        if not block:
            return
        done += len(block)
        if progress is not None:
            progress(done, total)
        yield block


def _inflated(first: bytes, blocks: Iterator[bytes], path: Path, ledger: LossLedger) -> Iterator[bytes]:
    read = written = 0
    inflater = isal_zlib.decompressobj(_GZIP_WBITS)
    for piece in _pieces(itertools.chain([first], blocks)):
        read += len(piece)
        pending = piece
        while pending:
            if inflater.eof:
                # Another member follows (files may be concatenated), or the padding that tapes and archives leave.
                pending = pending.lstrip(b"\0")
                if not pending:
                    break
                inflater = isal_zlib.decompressobj(_GZIP_WBITS)
            try:
                block = inflater.decompress(pending)
            except isal_zlib.error:  # type: ignore[misc]
                ledger.add("file_corrupt")
                return
            pending = inflater.unused_data if inflater.eof else b""
            written += len(block)
            _check_ratio(path, read, written)
            if block:
                yield block
    if not inflater.eof:
        ledger.add("file_cut")


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut blocks so small that even a bomb inflates to no more than 128 MiB at once."""
    for block in blocks:
        for start in range(0, len(block), _GZIP_PIECE):
            yield block[start : start + _GZIP_PIECE]


def _check_ratio(path: Path, read: int, written: int) -> None:
    if written > _RATIO_FREE and written > _MAX_RATIO * read:
        message = f"{path} expands to more than {_MAX_RATIO} times its size, as no trace does."
        raise DamagedTraceError(message, "If you trust the file, unpack it with gunzip and read the result.")
