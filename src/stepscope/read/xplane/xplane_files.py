"""The planes of an XPlane file, one after the other, and what the names of files and directories say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stepscope.errors import NotATraceError
from stepscope.read.common.protobuf import BLOCK, PADDING, varint
from stepscope.trace.losses import LossLedger

#: First bytes that show what a file is.
HEAD = 64
#: The first plane: its length, its number if it has one, and its name.
_HEAD = re.compile(
    rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x01-\x7f](?:/|#|Task Env)"
)
SUFFIXES = (".xplane.pb", ".xplane.pb.gz")

# Fields of XSpace.
PLANES, ERRORS, WARNINGS, HOSTS = 1, 2, 3, 4


class XSpaceField(NamedTuple):
    """A field of the file.

    Attributes:
        number: Number of the field.
        content: Its bytes, with padding behind.
        length: Their number, without the padding.
    """

    number: int
    content: bytearray
    length: int


def is_trace(path: Path, head: bytes) -> bool:
    """Return whether a file of that name, which begins so, is one."""
    return path.name.endswith(SUFFIXES) or _HEAD.match(head) is not None


def host_of(path: Path) -> str | None:
    """Return the host that the name of a file says; None if it says none."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return path.name[: -len(suffix)] or None
    return None


def latest(found: list[Path]) -> list[Path]:
    """Return those files of directories that belong to the latest recording, one for each host, in order of name.

    ``jax.profiler`` and TensorBoard keep every recording in a directory of its own, ``plugins/profile/<time>``. Files
    nearest to the directory that was named count; of several recordings there, the one whose time is last.
    """
    nearest = min(len(path.parts) for path in found)
    last = max({path.parent for path in found if len(path.parts) == nearest}, key=lambda parent: (parent.name, parent))
    return sorted(path for path in found if path.parent == last)


def parts(blocks: Iterator[bytes], path: Path, ledger: LossLedger) -> Iterator[XSpaceField]:
    """Yield the fields of a file; of a last one that is cut, its beginning.

    At most one field and one block are in memory.

    Raises:
        NotATraceError: It begins with something else.
    """
    rest = bytearray()
    field, begun, sound = None, False, True
    for block in blocks:
        rest += block
        while sound and (field := _head(rest)) is not None and len(rest) >= field.end:
            begun = True
            part, rest = _taken(rest, field)
            yield part
        sound = field is not None or len(rest) < HEAD
        if not sound:
            break
    if not rest:
        return
    if field is None and not begun:
        message = f"{path} is not an XPlane file."
        raise NotATraceError(message, "Name a file that the profiler of JAX or TensorFlow wrote, ….xplane.pb.")
    ledger.add_cut()
    if field is not None:
        yield _taken(rest, field._replace(end=len(rest)))[0]


class _Field(NamedTuple):
    """Number of a field, offset of its value, and offset behind it."""

    number: int
    start: int
    end: int


def _head(content: bytearray) -> _Field | None:
    """Return the field that bytes begin with; None if it is not whole, or neither text nor message."""
    key, start = varint(content, 0)
    if not start or key & 7 != BLOCK or not PLANES <= key >> 3 <= HOSTS:
        return None
    length, start = varint(content, start)
    return _Field(key >> 3, start, start + length) if start else None


def _taken(content: bytearray, field: _Field) -> tuple[XSpaceField, bytearray]:
    """Return a field and what follows it; its bytes are not copied, since a plane may be nearly all of a file."""
    rest = content[field.end :]
    del content[field.end :]
    del content[: field.start]
    content += PADDING
    return XSpaceField(field.number, content, field.end - field.start), rest
