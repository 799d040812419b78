"""Profiles of speedscope's format: file → tables ``samples`` and ``stacks``.

The format is the one of https://www.speedscope.app/file-format-schema.json: frames that profiles share, and a profile a
thread, either stacks with weights or the moments at which frames are opened and closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.read.common.foreign_samples import ForeignSamples, Frame, SampledThread
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, as_json
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import complete

_HEAD = re.compile(
    rb'\s*\{.{0,2000}?(?:"\$schema"\s*:\s*"https?://www\.speedscope\.app/|"shared"\s*:\s*\{\s*"frames")', re.S
)
#: Unit of a profile → ns.
_UNITS = {"nanoseconds": 1.0, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
#: How py-spy names a profile: `Process 12 Thread 34 "MainThread"`, `Thread 0x7F12 (idle): "worker"`.
_PROCESS, _THREAD, _QUOTED = (
    re.compile(r"Process (\d{1,18})\b"),
    re.compile(r"Thread (0x[0-9A-Fa-f]{1,15}|\d{1,18})\b"),
    re.compile(r'"(.+)"'),
)
_MAIN = "MainThread"


class _SpeedscopeFrame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None


class _Shared(msgspec.Struct):
    frames: list[_SpeedscopeFrame]


class _FrameEvent(msgspec.Struct):
    type: Literal["O", "C"]
    at: float
    frame: int


class _Profile(msgspec.Struct):
    type: str
    name: str = ""
    unit: str = "none"
    startValue: float = 0.0
    samples: list[list[int]] = []
    weights: list[float] = []
    events: list[_FrameEvent] = []


class _SpeedscopeFile(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]
    exporter: str | None = None


def is_speedscope(head: bytes) -> bool:
    """Return whether a file that begins so is a profile of speedscope's format."""
    return _HEAD.match(head) is not None


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file, plain or gzip. Its times count from its own beginning, unless its tool wrote others.

    Raises:
        InputError: The file cannot be read, is cut or damaged, or none of its profiles is of time.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    try:
        found = msgspec.json.decode(content, type=_SpeedscopeFile)
    except (ValueError, RecursionError) as error:
        message = f"{path} is cut or damaged: {' '.join(str(error).split())}."
        raise DamagedTraceError(message, "Copy it again, or record again.") from None
    timed = [profile for profile in found.profiles if profile.unit in _UNITS]
    if found.profiles and not timed:
        units = ", ".join(sorted({profile.unit[:40] for profile in found.profiles}))
        message = f"{path} holds no profile of time: its unit is {units}."
        raise NotATraceError(message, "Record time, or the CPU.")
    ledger.add("event_unknown_kind", len(found.profiles) - len(timed))
    frames: list[Frame] = [(one.file, one.line if one.line else None, one.name) for one in found.shared.frames]
    samples = ForeignSamples()
    for profile in timed:
        rows = _opened(profile, ledger) if profile.type == "evented" else _looked(profile, ledger)
        samples.add(_thread(profile.name), _in_ns(rows, _UNITS[profile.unit], frames, samples, ledger))
    if not samples:
        ledger.add("files_without_events")
    part = PartBuilder()
    samples.add_to(part, ledger)
    part.add_facts(as_json({"exporter": found.exporter} if found.exporter else {}))
    return complete(part.tables())


def _thread(name: str) -> SampledThread:
    process, thread, quoted = _PROCESS.search(name), _THREAD.search(name), _QUOTED.search(name)
    shown = quoted[1] if quoted else name
    numbers = (int(process[1]) if process else None, int(thread[1], 0) if thread else None)
    return SampledThread(shown or "thread", *numbers, main=shown == _MAIN)


def _looked(profile: _Profile, ledger: LossLedger) -> Iterator[tuple[float, float, Sequence[int]]]:
    """Yield start, duration and stack of each sample, outermost frame first."""
    ledger.add("event_without_duration", abs(len(profile.samples) - len(profile.weights)))
    at = profile.startValue
    for stack, weight in zip(profile.samples, profile.weights, strict=False):
        yield at, weight, stack
        at += weight


def _opened(profile: _Profile, ledger: LossLedger) -> Iterator[tuple[float, float, Sequence[int]]]:
    """Yield what was open between any two events."""
    stack: list[int] = []
    before = profile.events[0].at if profile.events else 0.0
    for event in profile.events:
        if event.at > before and stack:
            yield before, event.at - before, list(stack)
        before = event.at
        if event.type == "O":
            stack.append(event.frame)
        elif stack and stack[-1] == event.frame:
            stack.pop()
        else:
            ledger.add("event_unmatched_end")
    ledger.add("event_unmatched_begin", len(stack))


def _in_ns(
    rows: Iterator[tuple[float, float, Sequence[int]]],
    unit: float,
    frames: Sequence[Frame],
    samples: ForeignSamples,
    ledger: LossLedger,
) -> Iterator[tuple[int, int, int, int | None]]:
    known: dict[tuple[int, ...], int | None] = {}
    for start, length, stack in rows:
        if not (abs(start * unit) < LARGEST_TIME and abs(length * unit) < LARGEST_TIME):
            ledger.add("event_bad_time")
            continue
        key = tuple(stack)
        if key not in known:
            sound = [number for number in reversed(key) if 0 <= number < len(frames)]
            ledger.add("value_unreadable", len(key) - len(sound))
            known[key] = samples.stack([frames[number] for number in sound])
        yield round(start * unit), round(length * unit), 1, known[key]
