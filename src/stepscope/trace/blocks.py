r"""Append-only files of checksummed blocks: what the training process writes itself.

A file is a header and blocks. A block is written by a single ``write`` behind the one before it and never touched
again, so that a killed process leaves everything up to its last block.

::

    header   magic of 5 bytes, "SSJ1\n" · zero byte · version u16 · checksum of these u32          12 bytes
    block    marker f5 53 42 0a · number u32 · length u32 · checksum u32 · payload       16 + length bytes

Integers are little-endian. The checksum of a block (CRC-32) covers its number, length and payload. The number counts
blocks from 0: it tells how many are missing where some are damaged. A damaged block costs that block only: the reader
searches for the next marker behind which the checksum is right. What stepscope writes as payload is JSON, compressed
(:func:`pack`).

The standard library only: the training process imports this module.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepscope.errors import FormatVersionError, InputError, NotATraceError
from stepscope.trace.losses import LossLedger

MAGIC = b"SSJ1\n"
VERSION = 1

#: A longer payload is refused by the writer and is damage to the reader, which bounds what a damaged length can cost.
MAX_PAYLOAD = 16 << 20

#: JSON text of one payload, at most: what a reader inflates of a hostile one.
MAX_TEXT = 64 << 20

_MARKER = b"\xf5SB\n"
_HEADER = struct.Struct("<5sxHI")
_BLOCK = struct.Struct("<4sIII")
_CHECKED = struct.Struct("<II")

#: Bytes that a reader may check in vain while it looks for the next sound block. Real damage stays far below; a file
#: made of false markers would otherwise cost the square of its size.
_SEARCH_LIMIT = 1 << 30


def _header(magic: bytes, version: int) -> bytes:
    start = _HEADER.pack(magic, version, 0)[:-4]
    return start + struct.pack("<I", zlib.crc32(start))


def _checksum(number: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(number, len(payload))))


class OwnDescriptor:
    """A descriptor of stepscope's in the process of a program, which may close all files that it does not know.

    The system then gives the number to the next file of the program, which must not be written to or closed.

    Args:
        number: The descriptor, just opened.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._file = _file_of(number)

    @property
    def number(self) -> int:
        """The descriptor.

        Raises:
            OSError: It is closed, or the program's by now.
        """
        if self._number < 0 or _file_of(self._number) != self._file:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._number

    def close(self) -> bool:
        """Close it, unless it is the program's by now; return whether it was stepscope's until now. Idempotent."""
        try:
            os.close(self.number)
        except OSError:
            return False
        finally:
            self._number = -1
        return True


def _file_of(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


class FrameWriter:
    """Writes one file of blocks.

    The file is created with mode 0600 and never shared: an existing one is refused, programs started by this process do
    not inherit it.

    Args:
        path: File to create.
        magic: First bytes, which say what the blocks hold.
        version: Version of what they hold.

    Raises:
        OSError: The file exists or cannot be created or written.
    """

    def __init__(self, path: Path, magic: bytes = MAGIC, version: int = VERSION) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._file = OwnDescriptor(os.open(path, flags, 0o600))
        self._number = 0
        self._size = 0
        try:
            self._write(_header(magic, version))
        except OSError:
            self.close()
            raise

    def append(self, payload: bytes) -> None:
        """Write ``payload`` as the next block.

        Raises:
            ValueError: The payload is longer than :data:`MAX_PAYLOAD`.
            OSError: It cannot be written (disk full). The file keeps the blocks before it and can be appended to again.
        """
        if len(payload) > MAX_PAYLOAD:
            message = f"A block holds at most {MAX_PAYLOAD} bytes, not {len(payload)}."
            raise ValueError(message)
        checksum = _checksum(self._number, payload)
        self._write(_BLOCK.pack(_MARKER, self._number, len(payload), checksum) + payload)
        self._number += 1

    def _write(self, content: bytes) -> None:
        file, rest = self._file.number, memoryview(content)
        try:
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError:
            # Half a block would look like a killed process to the reader, and would hide the cause.
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._size)
            raise
        self._size += len(content)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def pack(content: Mapping[str, object]) -> bytes:
    """Return ``content`` as the payload of a block: JSON compressed with zlib's fastest level.

    Raises:
        ValueError: It is too large for a block, or no JSON.
    """
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")
    payload = zlib.compress(text, 1)
    if len(text) > MAX_TEXT or len(payload) > MAX_PAYLOAD:
        message = f"{len(text)} bytes of JSON are too much for one block."
        raise ValueError(message)
    return payload


def unpack(payload: bytes) -> bytes:
    """Return the JSON text of a payload that :func:`pack` made; at most :data:`MAX_TEXT` bytes are inflated.

    Raises:
        ValueError: The payload is nothing that :func:`pack` makes.
    """
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(payload, MAX_TEXT)
    except zlib.error as error:
        message = f"The block is not compressed as stepscope does: {error}."
        raise ValueError(message) from None
    if not inflater.eof:
        message = f"The block is cut, or inflates to more than {MAX_TEXT} bytes."
        raise ValueError(message)
    return text


def read_frames(path: Path, ledger: LossLedger, magic: bytes = MAGIC, newest: int = VERSION) -> Iterator[bytes]:
    """Yield the payloads of all sound blocks of a file, in order.

    A damaged block is left out and counted as ``block_damaged``; a block that the end of the file cuts is counted as
    ``block_cut``.

    Args:
        path: File that a :class:`FrameWriter` wrote, perhaps one that is still being written.
        ledger: Where losses are counted.
        magic: First bytes of a file of this sort.
        newest: Newest version of such files that the caller reads.

    Raises:
        InputError: It cannot be read.
        NotATraceError: The file is none of these.
        FormatVersionError: A newer stepscope wrote it.
    """
    try:
        # A pipe would keep us waiting for somebody who writes to it.
        data = path.read_bytes() if not path.exists() or path.is_file() else None
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise InputError(message, "Check the path and its permissions.") from None
    if data is None:
        message = f"{path} is not a regular file."
        raise NotATraceError(message, "Name a file that stepscope recorded.")
    start = _read_header(data, path, ledger, magic, newest)
    if start is not None:
        yield from _Blocks(data, start, ledger).payloads()


def _read_header(data: bytes, path: Path, ledger: LossLedger, magic: bytes, newest: int) -> int | None:
    """Return where the blocks start; None where the file ends within its header."""
    head = data[: _HEADER.size]
    sound = [_header(magic, version) for version in range(1, newest + 1)]
    if head in sound:
        return len(head)
    if len(head) < _HEADER.size and any(header.startswith(head) for header in sound):
        ledger.add("block_cut")
        return None
    if head.startswith(magic) and zlib.crc32(head[:-4]) == int.from_bytes(head[-4:], "little"):
        version = _HEADER.unpack(head)[1]
        message = f"{path} has capture format {version}; this stepscope reads {newest}."
        raise FormatVersionError(message, "Upgrade stepscope: pip install -U stepscope.")
    first = next(_Blocks(data, 0, LossLedger(str(path))).payloads(), None)
    if first is None and not head.startswith(magic):
        message = f"{path} is not a capture of stepscope."
        raise NotATraceError(message, "Name a file that stepscope recorded.")
    ledger.add("block_damaged")
    return max(data.find(_MARKER), 0) if first is not None else len(data)


class _Blocks:
    """The blocks of a file in memory, from ``start`` on."""

    def __init__(self, data: bytes, start: int, ledger: LossLedger) -> None:
        self._data = data
        self._view = memoryview(data)
        self._position = start
        self._ledger = ledger
        self._expected = 0
        self._effort = 0

    def payloads(self) -> Iterator[bytes]:
        """Yield the payloads of the sound blocks."""
        while self._position < len(self._data):
            damaged_from = self._position
            block = self._next_sound()
            if block is None:
                self._count_tail(damaged_from)
                return
            number, start, end = block
            skipped = damaged_from != start - _BLOCK.size
            missing = number - self._expected
            self._ledger.add("block_damaged", max(missing, int(skipped), 0))
            self._expected = number + 1
            self._position = end
            yield self._data[start:end]

    def _next_sound(self) -> tuple[int, int, int] | None:
        """Return number, start and end of the first sound block at or behind the position."""
        position = self._position
        while position >= 0:
            block = self._sound_at(position)
            if block is not None and block[0] >= self._expected:
                return block
            if self._effort > _SEARCH_LIMIT:
                return None
            position = self._data.find(_MARKER, position + 1)
        return None

    def _sound_at(self, position: int) -> tuple[int, int, int] | None:
        start = position + _BLOCK.size
        if start > len(self._data):
            return None
        marker, number, length, checksum = _BLOCK.unpack_from(self._data, position)
        end = start + length
        if marker != _MARKER or length > MAX_PAYLOAD or end > len(self._data):
            return None
        if _checksum(number, self._view[start:end]) == checksum:
            return number, start, end
        self._effort += length
        return None

    def _count_tail(self, position: int) -> None:
        """Count what lies behind the last sound block: cut where its block reaches beyond the end, else damaged."""
        start = position + _BLOCK.size
        cut = start > len(self._data)
        if not cut:
            marker, _, length, _ = _BLOCK.unpack_from(self._data, position)
            cut = marker == _MARKER and start + length > len(self._data)
        self._ledger.add("block_cut" if cut else "block_damaged")


def write_failure(error: Exception) -> tuple[str, str]:
    """Return the name of the loss in the catalogue, and the reason in words, of an error that ended a file."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return "disk_full" if full else "capture_not_written", reason
