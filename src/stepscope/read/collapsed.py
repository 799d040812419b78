"""Collapsed stacks, as py-spy (``--format raw``) and scripts for flame graphs write them → table ``samples``.

A line is a stack from outer to inner, and how often it was seen: ``main (a.py:3);step (a.py:9) 42``. It says neither
when, nor how long a look stands for: that is what the name of the file, or a first line after ``#``, says as looks in a
second (``train.100hz.collapsed.txt``, ``# 100 hz``). All samples begin at 0.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from stepscope.errors import NotATraceError
from stepscope.read.common.foreign_samples import ForeignSamples, Frame, SampledThread
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import complete

#: What stepscope calls the file that it writes, whose numbers are microseconds.
_OURS = "stacks.collapsed.txt"
_LINE = re.compile(r"(?P<stack>\S.*) (?P<count>\d{1,18})")
_RATE = re.compile(r"(?<![0-9A-Za-z.])(?P<rate>\d{1,6}) ?hz(?![0-9A-Za-z])|\.(?P<named>\d{1,6})hz\.", re.IGNORECASE)
#: What py-spy puts before the frames: process, then thread, each with its number and name.
_PROCESS = re.compile(r"process (?P<number>\d{1,18})(?::.*)?")
_THREAD = re.compile(r"thread \((?P<number>0x[0-9A-Fa-f]{1,15}|\d{1,18})\)(?:: (?P<name>.*))?")
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d{1,9}))?\)")
_NAME = re.compile(r".+\.(?:collapsed|folded)(?:\.txt)?(?:\.gz)?")
_MAIN, _LINES = "MainThread", 20


def is_collapsed(path: Path, head: bytes) -> bool:
    """Return whether a file is one, by its name, or because all of its first lines are stacks with their counts."""
    lines = [line for line in head.split(b"\n", _LINES + 1)[: _LINES + 1] if line.strip() and not line.startswith(b"#")]
    if not lines or lines[0][:1] in (b"{", b"["):
        return False
    whole = lines[:-1] or lines
    counted = [_LINE.fullmatch(line.decode("utf-8", "replace").rstrip()) is not None for line in whole]
    named = _NAME.fullmatch(path.name) is not None
    return any(counted) if named else all(counted) and any(b";" in line for line in whole)


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a file, plain or gzip.

    Raises:
        InputError: It cannot be read.
        NotATraceError: It does not say how long a look stands for.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    text = printable(content.decode("utf-8", "surrogateescape"))
    ledger.add("text_not_utf8", int(b"\\x" not in content and "\\x" in text))
    if not text.endswith("\n"):
        ledger.add_cut()
    first, _, _ = text.partition("\n")
    each = _each(path, first if first.startswith("#") else "")
    samples = ForeignSamples()
    for line in text.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        count = int(match["count"]) if match else 0
        if match is None or count * each >= LARGEST_TIME:
            ledger.add("event_damaged")
            continue
        thread, frames = _parts(match["stack"].split(";"), ours=path.name == _OURS)
        looks = 1 if path.name == _OURS else count
        samples.add(thread, [(0, count * each, looks, samples.stack(frames))] if count else [])
    if not samples:
        ledger.add("files_without_events")
    part = PartBuilder()
    samples.add_to(part, ledger)
    return complete(part.tables())


def _each(path: Path, comment: str) -> int:
    """Return the ns that a count stands for."""
    match = _RATE.search(comment.lstrip("#").strip()) or _RATE.search(path.name)
    rate = int(match["rate"] or match["named"]) if match else 0
    if rate:
        return round(1e9 / rate)
    if path.name == _OURS:
        return 1000
    message = f"{path} counts looks at stacks, and does not say how long one stands for."
    raise NotATraceError(message, "Put the looks in a second into its name: NAME.100hz.txt (py-spy's default is 100).")


def _parts(parts: list[str], *, ours: bool) -> tuple[SampledThread, list[Frame]]:
    """Return the thread of a stack, and its frames, innermost first."""
    process, number, name = None, None, "all threads"
    if ours and len(parts) > 1:
        name, *parts = parts
    if parts and (match := _PROCESS.fullmatch(parts[0])):
        process, parts = int(match["number"]), parts[1:]
    if parts and (match := _THREAD.fullmatch(parts[0])):
        number, name, parts = int(match["number"], 0), match["name"] or "thread", parts[1:]
    frames = [_frame(part) for part in reversed(parts)]
    return SampledThread(name, process, number, main=name == _MAIN), frames


def _frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text)
    return (
        (match["file"], int(match["line"]) if match["line"] else None, match["function"])
        if match
        else (None, None, text)
    )
