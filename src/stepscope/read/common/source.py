"""Captures and how their files are listed and read: block by block, plain or gzip, with bounds on size and number."""

from __future__ import annotations

import itertools
import os
import re
import stat
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from isal import isal_zlib

from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.trace.losses import LossLedger
from stepscope.trace.run_directory import MANIFEST, WRITTEN

#: Called with bytes of the file read so far, and its size.
Progress: TypeAlias = Callable[[int, int], None]

#: Bytes per block: small enough to stay in the cache until they are parsed, large enough that Python's cost vanishes.
BLOCK = 4 << 20
#: Bytes that are read to find out what a file is; nearly all heads are shorter.
HEAD = 64 << 10
#: Most names that are listed below a directory.
MOST_ENTRIES = 200_000
#: Most directories between the one that is named and a file of a capture.
DEEPEST = 6
#: Folder for runs that are made of captures, beside or below them.
MADE = "STEPSCOPE_OUTPUT"

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31
_GZIP_PIECE, _SMALL_PIECE = 128 << 10, 16 << 10

# JSON traces compress 8 to 40 times. Deflate can reach 1032, with nothing but repetition, which no trace is.
_MAX_RATIO = 250
#: Bytes that a compressed file may expand to, whatever its ratio.
RATIO_FREE = 256 << 20


def open_trace(path: Path) -> IO[bytes]:
    """Open a regular file for reading.

    Raises:
        InputError: It does not exist or may not be read.
        NotATraceError: It is a directory, pipe, socket or device.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer must not block before the test below refuses it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise InputError(message, "Check the path and its permissions.") from None
    except ValueError:
        message = f"{str(path)!r} is not a path."
        raise InputError(message, "Check the path.") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"{path} is not a regular file."
        raise NotATraceError(message, "Name a trace file; stepscope does not read from directories, pipes or devices.")
    return os.fdopen(descriptor, "rb", buffering=0)


@dataclass(frozen=True)
class Capture:
    """What one process recorded at a time: a file, or the files of a directory.

    Made by :func:`stepscope.read.sniff.look`, which looks once; everything after it takes this object.

    Attributes:
        format: ``kineto``, ``journal``, ``cupti``, ``recorder``, ``mindspore``, ``fluid``, ``paddle``, ``paddle_json``,
            ``xplane``, ``pprof`` or ``ascend``; empty if the file cannot be read.
        root: The file; of several files their directory, or the first file if the directory holds several ranks.
        files: The files that the reader uses, by sort, in order of name.
        rank: Rank of the process in its job; None if neither files nor names say.
        world_size: Number of processes of the job; None if the files do not say.
        host: Host name; None if neither files nor names say.
        window: Start of the recording, ns since the Unix epoch; None if the head of the file does not say.
        worker: What the name says of the process (``host_4711``); captures of one worker are of one rank.
        fault: Why the capture is left out, in one sentence; empty if it is read.
        process: Number of the process, where name and content agree on it; else empty.
        ranks: Ranks that the file holds, of which this is one, where it is a timeline of a job; else empty.
    """

    format: str
    root: Path
    files: Mapping[str, list[Path]]
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    window: int | None = None
    worker: str = ""
    fault: str = ""
    process: str = ""
    ranks: tuple[int, ...] = ()

    def of(self, *sorts: str) -> list[Path]:
        """Return the files of these sorts."""
        return [path for sort in sorts for path in self.files.get(sort, [])]

    @property
    def all(self) -> list[Path]:
        """Every file that the reader uses."""
        return self.of(*self.files)

    @property
    def of_others(self) -> int:
        """How many of the files belong to a user who is neither this one nor root, or may be written by everyone."""
        mine = {0, os.geteuid()} if hasattr(os, "geteuid") else None
        found = [path.stat() for path in self.all if path.exists()]
        return sum(mine is not None and (one.st_uid not in mine or bool(one.st_mode & stat.S_IWOTH)) for one in found)

    @property
    def name(self) -> str:
        """Name of the file or directory."""
        return self.root.name

    @property
    def loss(self) -> str:
        """Name in the catalogue of losses for a capture that is left out."""
        named = {"kineto": "file_duplicate", "paddle": "file_duplicate", "ascend": "rank_left_out"}
        return {**named, "journal": "step_times_foreign"}.get(self.format, "file_unreadable")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.all if path.exists())


def rank_in_name(path: Path) -> int | None:
    """Return the rank that the name of a file or directory says, as ``rank3``, ``rank-3`` or ``rank_3``."""
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


class Directories:
    """Names in a directory and those below it, each directory listed once and all of them bounded in number.

    Hidden names are left out (their files are still being written), and so are links to directories, the runs that
    stepscope made, whose captures are copies, and a rank's results, some of which have names of Ascend's files.

    Attributes:
        known: Directory → names of its files, and of the directories in it.
        unreadable: Directories below the top that cannot be read, each with the reason.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._left = MOST_ENTRIES
        self.known: dict[Path, tuple[list[str], list[str]]] = {}
        self.unreadable: dict[Path, str] = {}

    def listed(self, directory: Path) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the directories in a directory, each in order.

        Raises:
            InputError: The top directory cannot be read; others count as empty.
            NotATraceError: More than :data:`MOST_ENTRIES` names were listed.
        """
        if directory not in self.known:
            self.known[directory] = self._list(directory)
        return self.known[directory]

    def _list(self, directory: Path) -> tuple[list[str], list[str]]:
        files, directories = [], []
        try:
            with os.scandir(directory) as entries:
                for entry in itertools.islice(entries, self._left + 1):
                    self._left -= 1
                    if entry.name == WRITTEN and directory != self._top and directory.name.startswith("results"):
                        return [], []
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                        continue
                    with suppress(OSError):  # a link to itself, or one to a file that may not be examined
                        if entry.is_file():
                            files.append(entry.name)
        except (OSError, ValueError) as error:
            message = f"{directory} cannot be read: {getattr(error, 'strerror', None) or error}."
            if directory == self._top:
                raise InputError(message, "Check the path and its permissions.") from None
            self.unreadable[directory] = message
            return [], []
        if self._left < 0:
            message = f"{self._top} holds more than {MOST_ENTRIES:,} files, too many to search."
            raise NotATraceError(message, "Name the run, or the directory that holds the captures.")
        directories = [] if MANIFEST in files else sorted(set(directories) - {MADE})
        return sorted(files), directories


def tell_all(path: Path, progress: Progress | None) -> None:
    """Report that the whole file is read."""
    if progress is not None:
        size = path.stat().st_size
        progress(size, size)


def read_blocks(
    path: Path, ledger: LossLedger, progress: Progress | None = None, *, first: int | None = None
) -> Generator[bytes, None, None]:
    """Yield the file's bytes, inflated if it is gzip, in blocks of about :data:`BLOCK` bytes.

    A gzip file that ends early or is damaged yields what comes before, and a row in the ledger.

    Args:
        path: The file.
        ledger: Counts a file that is cut or damaged.
        progress: Called with bytes read, and in total.
        first: Size of the first block, in bytes of the file; None means :data:`BLOCK`.

    Raises:
        InputError: The file cannot be opened or read.
        DamagedTraceError: It is empty, or expands as no trace does.
    """
    with open_trace(path) as file:
        total = os.fstat(file.fileno()).st_size
        blocks = _raw_blocks(file, path, first or BLOCK, total, progress)
        begin = next(blocks, b"")
        if not begin:
            message = f"{path} is empty."
            raise DamagedTraceError(message, "Record it again; the recorder was stopped before it wrote anything.")
        if begin.startswith(_GZIP_MAGIC):
            yield from _inflated(begin, blocks, path, ledger)
        else:
            yield begin
            yield from blocks


def _raw_blocks(file: IO[bytes], path: Path, size: int, total: int, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    while True:
        try:
            block = file.read(size)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}."
            raise InputError(message, "Check the disk or the network share, and try again.") from None
        if not block:
            return
        done, size = done + len(block), BLOCK
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
                found = written
                for block in _until_damage(path, written):
                    found += len(block)
                    yield block
                if not found:
                    message = f"{path} is damaged from its beginning on: nothing that it compresses can be read."
                    raise DamagedTraceError(message, "Copy it again, or record again.") from None
                ledger.add("file_corrupt")
                return
            pending = inflater.unused_data if inflater.eof else b""
            written += len(block)
            if written > RATIO_FREE and written > _MAX_RATIO * read:
                message = f"{path} expands to more than {_MAX_RATIO} times its size; traces expand less."
                raise DamagedTraceError(message, "If you trust the file, unpack it with gunzip and read the result.")
            if block:
                yield block
    if not inflater.eof:
        ledger.add("file_cut")


def _until_damage(path: Path, known: int) -> Iterator[bytes]:
    """Yield what a damaged gzip file holds before the damage, but for the first ``known`` bytes, which are there.

    A decompressor gives nothing of the piece in which it meets damage, so pieces are halved until it lies in one byte.
    """
    inflater = zlib.decompressobj(_GZIP_WBITS)
    with open_trace(path) as file:
        while piece := file.read(_SMALL_PIECE):
            pieces = [piece]
            while pieces:
                pending = pieces.pop()
                if inflater.eof:
                    inflater, pending = zlib.decompressobj(_GZIP_WBITS), pending.lstrip(b"\0")
                before = inflater.copy()
                try:
                    block = inflater.decompress(pending)
                except zlib.error:
                    if len(pending) == 1:
                        return
                    inflater, half = before, len(pending) // 2
                    pieces += [pending[half:], pending[:half]]
                    continue
                if inflater.unused_data:
                    pieces.append(inflater.unused_data)
                yield block[known:]
                known = max(0, known - len(block))


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Cut blocks so small that even a bomb inflates to no more than 128 MiB at once."""
    for block in blocks:
        for start in range(0, len(block), _GZIP_PIECE):
            yield block[start : start + _GZIP_PIECE]
