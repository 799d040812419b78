"""A trace document cut into what comes before its events, chunks of whole events, and what comes after."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.trace.losses import LossLedger

_LIST = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_EVENT = re.compile(rb'\{\s{0,60}"ph"')
_WHITE = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Metadata before the events is a few KiB, with many process groups a few hundred.
_MAX_HEAD = 64 << 20


@dataclass
class Document:
    """The parts of a trace file.

    Attributes:
        path: For messages.
        ledger: Counts what is missing.
        metadata: Top-level keys of the document without the events, as JSON; complete once the chunks are read.
        is_object: Whether the list of events is a member of an object, or the whole document.
    """

    path: Path
    ledger: LossLedger
    metadata: dict[str, str] = field(default_factory=dict)
    is_object: bool = True

    def chunks(self, blocks: Iterator[bytes]) -> Iterator[tuple[bytes | memoryview, bool]]:
        """Yield chunks of whole events, each with whether it is the last; the last may hold the end of the list.

        Raises:
            NotATraceError: It has no list of events.
            DamagedTraceError: It ends before the list begins.
        """
        yield from _whole_events(self.after_head(blocks))

    def read_tail(self, tail: bytes | str | None) -> None:
        """Take the metadata after the list of events; None for a list without end, which is counted already."""
        if tail is None:
            return
        if isinstance(tail, str):
            tail = tail.encode("utf-8", "surrogateescape")
        rest = tail.strip().removeprefix(b",").strip()
        if _EVENT.search(rest):
            self.ledger.add("text_after_end")
        elif not self.is_object:
            self.ledger.add("metadata_damaged", int(bool(rest)))
        elif not rest.endswith(b"}"):
            self.ledger.add_cut()
        elif rest != b"}":
            self._add(b"{" + rest)

    def after_head(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the text from the first event on, to the end of the file; blocks are cut anywhere.

        Raises:
            NotATraceError: It has no list of events.
            DamagedTraceError: It ends before the list begins.
        """
        head = b""
        for block in blocks:
            head += block
            start = _start_of_events(head)
            if start is not None:
                self._add_head(head[:start])
                yield head[start:]
                yield from blocks
                return
            if len(head) > _MAX_HEAD or head.removeprefix(_BYTE_ORDER_MARK).lstrip(_WHITE)[:1] not in (b"", b"{", b"["):
                break
        self._refuse(head)

    def _add_head(self, head: bytes) -> None:
        before = head.removeprefix(_BYTE_ORDER_MARK).strip()
        self.is_object = before.startswith(b"{")
        if self.is_object:
            list_start = _LIST.search(before)
            self._add(before[: list_start.start() if list_start else None] + b'"":0}')

    def _add(self, source: bytes) -> None:
        try:
            found = msgspec.json.decode(source, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.ledger.add("metadata_damaged")
            return
        for key, value in found.items():
            if key:
                self.metadata[key] = bytes(value).decode("utf-8", "backslashreplace")

    def _refuse(self, head: bytes) -> None:
        try:
            value: Any = msgspec.json.decode(head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if head.strip()[:1] in (b"{", b"["):
                message = f"{self.path} is damaged: it ends, or stops being JSON, before its first event."
                raise DamagedTraceError(
                    message, "Record it again, or copy it again from where it was recorded."
                ) from None
            message = f"{self.path} is not JSON."
            raise NotATraceError(message, "stepscope reads Kineto and Chrome traces (.json, .json.gz).") from None
        kind = "a list without events" if isinstance(value, list) else "without traceEvents"
        message = f"{self.path} is JSON, but {kind}: no trace."
        raise NotATraceError(message, "stepscope reads what torch.profiler's export_chrome_trace writes, and the like.")


def _start_of_events(head: bytes) -> int | None:
    """Return the offset at which the first event would begin; None if the list has not begun."""
    text = head.removeprefix(_BYTE_ORDER_MARK)
    skipped = len(head) - len(text)
    stripped = text.lstrip(_WHITE)
    if stripped.startswith(b"["):
        inside = stripped[1:].lstrip(_WHITE)
        # The first element decides: a list of numbers or lists is not a trace.
        return len(head) - len(stripped) + 1 if inside[:1] in (b"{", b"]") else None
    match = _LIST.search(head, skipped) if stripped.startswith(b"{") else None
    return None if match is None else match.end()


def _whole_events(blocks: Iterable[bytes]) -> Iterator[tuple[bytes | memoryview, bool]]:
    """Cut blocks at beginnings of events, and join the events that two blocks share.

    Blocks without a recognisable beginning of an event wait for the next one, if need be to the end of the file.
    """
    pending: list[bytes] = []
    for block in blocks:
        first, last = first_event(block), last_event(block)
        if first < 0:
            pending.append(block)
            continue
        pending.append(block[:first])
        yield b"".join(pending), False
        if last > first:
            yield memoryview(block)[first:last], False
        pending = [block[last:]]
    yield b"".join(pending), True


def first_event(text: bytes) -> int:
    """Return the offset of the first recognisable event, else −1; see :func:`last_event`."""
    match = _EVENT.search(text)
    return match.start() if match else -1


def last_event(text: bytes) -> int:
    """Return the offset of the last recognisable event, else −1.

    ``{`` and ``"ph"`` with nothing but white space between cannot be inside a string, whose quotes would be escaped: it
    is the start of an event wherever ``ph`` is its first key, as in every file that Kineto writes.
    """
    end = len(text)
    while (end := text.rfind(b'"ph"', 0, end)) > 0:
        before = text[max(0, end - 64) : end].rstrip(_WHITE)
        if before.endswith(b"{"):
            return max(0, end - 64) + len(before) - 1
    return -1
