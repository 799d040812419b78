"""Builds what the native recorder would have written, from its description alone: words, blocks and whole files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.trace.blocks import FrameWriter, pack

BASE_TICKS, BASE_MONOTONIC, BASE_EPOCH = 10**12, 5 * 10**12, 1_700_000_000 * 10**9
#: Ticks per ns.
RATE = 3


def word(tag: int, value: int) -> int:
    """Return one word."""
    return tag << 60 | value & (1 << 60) - 1


def unsigned(value: int) -> bytes:
    """Return a LEB128 number."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def signed(value: int) -> bytes:
    """Return a zigzag LEB128 number."""
    return unsigned(value * 2 if value >= 0 else -value * 2 - 1)


def tensor(kind: int, shape: list[int], strides: list[int] | None = None) -> bytes:
    """Return a tensor among inputs."""
    out = bytes([1, kind]) + unsigned(len(shape)) + b"".join(map(unsigned, shape))
    return out + (bytes([0]) if strides is None else bytes([1]) + b"".join(map(unsigned, strides)))


def tensors(*each: bytes) -> bytes:
    """Return a list of tensors among inputs."""
    return bytes([7]) + unsigned(len(each)) + b"".join(each)


def group(name: str, rank: int, size: int) -> bytes:
    """Return a process group among inputs."""
    return bytes([10]) + unsigned(rank) + unsigned(size) + unsigned(len(name.encode())) + name.encode()


@dataclass
class Thread:
    """What one thread writes. Times are ns since the beginning of the recording."""

    file: File
    number: int
    native: int
    torch: int
    chunk: int = 0
    place: int = 0
    depth: int = 0
    dropped: int = 0
    words: list[int] = field(default_factory=list)
    defined: dict[tuple[int, bytes], int] = field(default_factory=dict)

    def _ready(self) -> None:
        if not self.words and not self.place:
            self.words.append(word(8, self.depth))

    def define(self, sort: int, content: bytes) -> int:
        """Return the number of a definition, which is written where the chunk has not got it."""
        if (sort, content) not in self.defined:
            number = 1 + sum(known == sort for known, _ in self.defined)
            self.defined[sort, content] = number
            self.words.append(word(12, sort << 56 | number << 32 | len(content)))
            for at in range(0, len(content), 7):
                self.words.append(word(13, int.from_bytes(content[at : at + 7], "little")))
        return self.defined[sort, content]

    def begin(self, at: int, name: str, **more: Any) -> None:
        """An operator begins; more: scope, sequence, inputs (bytes), forward, identity, line, launch."""
        self._ready()
        number = self.define(1, name.encode())
        inputs = self.define(2, more["inputs"]) if more.get("inputs") is not None else None
        self.words.append(word(2, self.file.ticks(at)))
        self.words.append(word(3, more.get("scope", 0) << 56 | number << 36 | more.get("sequence", -1) + 1))
        said = (inputs, *map(more.get, ("forward", "identity", "line", "launch")))
        for tag, value in zip((4, 5, 6, 14, 15), said, strict=True):
            if value is not None:
                self.words.append(word(tag, value))
        self.depth += "identity" not in more

    def end(self, at: int, level: int = 0) -> None:
        """An operator of the stack ends."""
        self._ready()
        self.words += [word(9, level)] if level else []
        self.words.append(word(1, self.file.ticks(at)))
        self.depth -= 1

    def end_of(self, at: int, identity: int) -> None:
        """An operator with an identity ends."""
        self._ready()
        self.words += [word(7, self.file.ticks(at)), word(6, identity)]

    def memory(self, at: int, address: int, size: int, device: int = 0) -> None:
        """Memory is taken or freed."""
        self._ready()
        self.words.append(word(10, self.file.ticks(at)))
        self.words += [word(11, value) for value in (address, size, 100, 200, device)]

    def flush(self) -> None:
        """Write what there is as a block."""
        if self.words:
            head = struct.pack("<c3xIIIIIQQ", b"W", self.number, self.chunk, self.place, self.dropped, self.native,
                               self.native << 20, self.torch)  # fmt: skip
            self.file.writer.append(head + struct.pack(f"<{len(self.words)}Q", *self.words))
            self.place += len(self.words)
            self.words = []

    def next_chunk(self, dropped: int = 0) -> None:
        """Go on in a new chunk; nothing where this one is empty."""
        if not self.words and not self.place:
            return
        self.flush()
        self.chunk, self.place, self.dropped = self.chunk + 1, 0, dropped
        self.defined.clear()


class File:
    """A file of the recorder, block by block."""

    def __init__(self, path: Path, version: int = 3, **facts: Any) -> None:
        self.path = path
        self.writer = FrameWriter(path, b"SSR1\n", version)
        self.is_tsc = facts.get("clock", "tsc") == "tsc"
        said = {"process": 4711, "host": "node-1", "torch": "2.13.0", "clock": "tsc", "chunk": 32768, "sample": 1.0}
        self.writer.append(b"F" + pack({**said, "options": {}, **facts}))
        self.threads: list[Thread] = []
        self.clock(0)

    def ticks(self, at: int) -> int:
        """Return ticks at a time of the recording in ns."""
        return BASE_TICKS + RATE * at if self.is_tsc else BASE_MONOTONIC + at

    def clock(self, at: int, *, set_by: int = 0) -> None:
        """Write what the clocks say."""
        said = struct.pack("<c7xQqqII", b"C", self.ticks(at), BASE_MONOTONIC + at, BASE_EPOCH + at + set_by, 30, 40)
        self.writer.append(said)

    def rates(self, changes: list[tuple[int, float]]) -> None:
        """Write from when on which fraction of the operators was recorded."""
        pairs = b"".join(struct.pack("<Qd", self.ticks(at), rate) for at, rate in changes)
        self.writer.append(struct.pack("<c7x", b"R") + pairs)

    def thread(self, native: int = 4711, torch: int = 1, name: str = "") -> Thread:
        """Return a new thread."""
        thread = Thread(self, len(self.threads), native, torch)
        self.threads.append(thread)
        if name:
            self.writer.append(struct.pack("<c3xI", b"T", thread.number) + name.encode())
        return thread

    def close(self, at: int = 10**9, *, closed: bool = True, **last: Any) -> Path:
        """Write what is left, the clocks, and the last block."""
        for thread in self.threads:
            thread.flush()
        self.clock(at)
        if closed:
            self.writer.append(b"F" + pack({"closed": True, "losses": {}, **last}))
        self.writer.close()
        return self.path


def without(path: Path, *blocks: int) -> Path:
    """Return a copy of a file whose blocks of these numbers have a wrong checksum."""
    content = bytearray(path.read_bytes())
    at, number = 12, 0
    while at < len(content):
        _, _, length, _ = struct.unpack_from("<4sIII", content, at)
        if number in blocks:
            content[at + 16] ^= 255
        at, number = at + 16 + length, number + 1
    copy = path.with_name(f"damaged{path.suffix}")
    copy.write_bytes(content)
    return copy
