"""A snapshot of PyTorch's caching allocators → tables ``allocations``, ``memory_segments``, ``live_memory``.

The file is a pickle of dictionaries and lists (``torch/cuda/memory.py``: Segment, Block, TraceEntry, Frame), which
:mod:`~stepscope.read.memory_snapshot.plain_pickle` reads without running anything. It says what every segment held in
the end, and what the allocator did before that, as far as its history was recorded. What was allocated and reserved
after each event follows by counting back from the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.read.common.named_steps import add_named_steps
from stepscope.read.common.part_builder import PartBuilder, TrackRow, as_json
from stepscope.read.common.source import Progress, read_blocks, tell_all
from stepscope.read.memory_snapshot.plain_pickle import PlainPickle
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import OUT_OF_MEMORY

#: The first bytes of protocols 2 to 5; and a dictionary whose first key is a snapshot's.
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SNAPSHOT = re.compile(
    rb"\x80[\x02-\x05](?:\x95.{8})?\}(?:\x94|q.|r.{4})?\(?(?:\x8c.|X.{4})"
    rb"(?:segments|device_traces|allocator_settings|external_annotations)",
    re.DOTALL,
)
#: Actions of the allocator: what they change by their size, allocated, reserved and active.
_CHANGES = {
    "alloc": (1, 0, 1), "free_requested": (-1, 0, 0), "free_completed": (0, 0, -1), "free": (-1, 0, -1),
    "segment_alloc": (0, 1, 0), "segment_map": (0, 1, 0), "segment_free": (0, -1, 0), "segment_unmap": (0, -1, 0),
}  # fmt: skip
_BLOCKS = ("alloc", "free_requested", "free_completed", "free")
#: States of blocks in use, and what the table of living memory calls them.
_ALIVE = {
    "active_allocated": "allocated",
    "active_awaiting_free": "awaiting free",
    "active_pending_free": "awaiting free",
}
_WRAP, _TOP, _LARGEST = 1 << 64, 1 << 63, 1 << 62
#: Most refusals that are kept; the last ones.
_MOST_EXHAUSTED = 100
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_SPAN: dict[str, Any] = {
    "track": pl.Int32,
    "ts": pl.Int64,
    "dur": pl.Int64,
    "name": pl.Categorical(),
    "kind": pl.String,
}
_EVENT = {
    "action": pl.String, "address": pl.Int64, "size": pl.Int64, "stream": pl.Int64, "ts": pl.Int64, "stack": pl.Int64,
}  # fmt: skip


def is_pickle(head: bytes) -> bool:
    """Return whether a file that begins so is a pickle of protocol 2 or later."""
    return _PICKLE.match(head) is not None


def is_snapshot(head: bytes) -> bool:
    """Return whether a file that begins so is a snapshot."""
    return _SNAPSHOT.match(head) is not None


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a snapshot, plain or gzip.

    Returns:
        All tables, empty but for ``allocations``, ``memory_segments``, ``live_memory``, ``stacks``, ``metadata``, and
        the ranges that the program named.

    Raises:
        InputError: It cannot be read, is damaged, asks for more than plain values, or is not a snapshot.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    value = PlainPickle(content, str(path)).value()
    snapshot = value if isinstance(value, dict) else {}
    segments, traces = snapshot.get("segments"), snapshot.get("device_traces")
    if not isinstance(segments, list) or not isinstance(traces, list | type(None)):
        message = f"{path} holds no list of segments: it is not a snapshot of an allocator's memory."
        raise NotATraceError(message, "Name what torch.cuda.memory._dump_snapshot wrote.")
    snapshot_tables = _Snapshot(path, len(content), ledger)
    snapshot_tables.add_segments(segments)
    for device, trace in enumerate(traces or []):
        snapshot_tables.add_trace(device, trace)
    snapshot_tables.add_annotations(snapshot.get("external_annotations"))
    settings = snapshot.get("allocator_settings")
    if isinstance(settings, dict):
        plain = {name: one for name, one in settings.items() if isinstance(one, str | int | float | bool | None)}
        snapshot_tables.part.add_facts(as_json({"allocator_settings": plain}))
    tell_all(path, progress)
    return snapshot_tables.tables()


class _Snapshot:
    """Gathers the tables of one file.

    Args:
        path: The file.
        size: Its size; it cannot list more things than it has bytes, however often it repeats a list.
        ledger: Counts what cannot be read.
    """

    def __init__(self, path: Path, size: int, ledger: LossLedger) -> None:
        self.part = PartBuilder()
        self._path = path
        self._left = size
        self._ledger = ledger
        self._stack_of: dict[int, int | None] = {}
        self._number_of: dict[tuple[Any, ...], int] = {}
        self._exhausted: list[dict[str, Any]] = []
        #: Allocated, reserved and active bytes of each device in the end.
        self._final: dict[int, tuple[int, int, int]] = {}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables of everything that was added."""
        if self._exhausted:
            self.part.add_facts(as_json({OUT_OF_MEMORY: self._exhausted[-_MOST_EXHAUSTED:]}))
            moments = [("out of memory", one["ts"], 0) for one in self._exhausted]
            self.part.add_rows("run_events", moments, "name", "ts", "dur")
        names = ("file", "line", "function")
        self.part.add_stacks([[dict(zip(names, frame, strict=True)) for frame in frames] for frames in self._number_of])
        return self.part.tables()

    def add_segments(self, segments: list[Any]) -> None:
        """Add what the segments hold: themselves, and their living blocks by stack."""
        rows: list[tuple[object, ...]] = []
        alive: dict[tuple[str, int, int | None], tuple[int, int]] = {}
        for segment in self._dicts(segments):
            device, size = _number(segment.get("device")), _size(segment.get("total_size"))
            if device is None or size is None:
                self._ledger.add("event_damaged")
                continue
            sums = {"active_allocated": 0, "awaiting": 0, "requested": 0, "free": 0, "count": 0}
            for block in self._dicts(segment.get("blocks")):
                state, bytes_ = block.get("state"), _size(block.get("size"))
                if bytes_ is None or not isinstance(state, str):
                    self._ledger.add("event_damaged")
                    continue
                if state not in _ALIVE:
                    sums["free"] = max(sums["free"], bytes_)
                    continue
                requested = _size(block.get("requested_size"))
                sums["active_allocated" if state == "active_allocated" else "awaiting"] += bytes_
                sums["requested"] += bytes_ if requested is None else requested
                sums["count"] += 1
                key = (_ALIVE[state], device, self._stack(block.get("frames")))
                count, total = alive.get(key, (0, 0))
                alive[key] = count + 1, total + (bytes_ if requested is None else requested)
            rows.append((
                f"cuda:{device}", _address(segment.get("address")), size, sums["active_allocated"], sums["requested"],
                sums["awaiting"], sums["free"], sums["count"], _number(segment.get("stream")),
                _word(segment.get("segment_type")), _truth(segment.get("is_expandable")),
                self._stack(segment.get("frames")),
            ))  # fmt: skip
            before = self._final.get(device, (0, 0, 0))
            self._final[device] = before[0], before[1] + size, before[2]
        for (kind, device, _), (_, total) in alive.items():
            allocated, reserved, active = self._final[device]
            self._final[device] = allocated + total * (kind == "allocated"), reserved, active + total
        names = (
            "device", "address", "bytes", "allocated", "requested", "awaiting", "largest_free", "blocks", "stream",
            "pool", "expandable", "stack",
        )  # fmt: skip
        self.part.add_rows("memory_segments", rows, *names)
        living = [
            (kind, f"cuda:{device}", count, total, stack) for (kind, device, stack), (count, total) in alive.items()
        ]
        self.part.add_rows("live_memory", living, "kind", "device", "count", "bytes", "stack")

    def add_trace(self, device: int, trace: Any) -> None:  # noqa: ANN401 - whatever the file holds
        """Add what the allocator of one device did, oldest first."""
        rows, untimed = [], 0
        for number, entry in enumerate(self._dicts(trace)):
            action = entry.get("action")
            time = _size(entry.get("time_us"))
            untimed += time is None
            size, at = _size(entry.get("size")), 1000 * (number if time is None else min(time, _LARGEST // 1000))
            if not isinstance(action, str) or size is None:
                self._ledger.add("event_damaged")
            elif action in _CHANGES:
                row = (action, _address(entry.get("addr")), size, _number(entry.get("stream")), at)
                rows.append((*row, self._stack(entry.get("frames"))))
            elif action == "oom":
                free, where = _size(entry.get("device_free")), self._own_line(entry.get("frames"))
                self._exhausted.append(
                    {"device": f"cuda:{device}", "ts": at, "asked": size, "free": free, "line": where}
                )
            else:
                self._ledger.add("event_unknown_kind", 1, f"Marks of the allocator: {action[:40]}.")
        if rows:
            self._ledger.add("memory_times_unknown", int(untimed > 0))
            self._add_events(device, pl.DataFrame(rows, schema=_EVENT, orient="row"))

    def _add_events(self, device: int, events: pl.DataFrame) -> None:
        size = events["size"].to_numpy()
        changes = np.array([_CHANGES[action] for action in events["action"].to_list()], np.int64)
        after = np.cumsum(changes * size[:, None], axis=0)
        final = np.array(self._final.get(device, (0, 0, 0)), np.int64)
        totals = final - after[-1] + after
        known = (totals >= 0).all(axis=0)
        self._ledger.add("memory_totals_unknown", int(not known.all()))
        of_block = pl.col("action").is_in(_BLOCKS)
        columns = {
            name: totals[:, place] if known[place] else [None] * len(events)
            for place, name in enumerate(("allocated", "reserved", "active"))
        }
        rows = events.with_columns(
            pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64)),
            # The order of the events counts; a clock that was set does not.
            ts=pl.col("ts").cum_max(),
            device=pl.lit(f"cuda:{device}"),
            bytes=pl.Series(changes[:, 0] * size),
            address=pl.when(of_block).then("address"),
            component=pl.lit(None, pl.String),
        )
        done = _completed(events["action"].to_list(), events["address"].to_list(), rows["ts"].to_list())
        rows = rows.with_columns(unused=pl.Series(done, dtype=pl.Int64)).filter(pl.col("action") != "free_completed")
        self.part.add("allocations", rows.drop("action", "size"))

    def add_annotations(self, marks: Any) -> None:  # noqa: ANN401 - whatever the file holds
        """Add the ranges that the program named (``record_function``) as spans, and the steps that they are."""
        track = self.part.tracks.number(TrackRow("other", "cpu", "annotations")) if marks else 0
        begun: dict[tuple[str, int | None], list[int]] = {}
        rows: list[tuple[int, int, int, str, str]] = []
        unmatched = 0
        for mark in self._dicts(marks):
            name, stage, time = _word(mark.get("name")), mark.get("stage"), _size(mark.get("time_us"))
            opened = begun.setdefault((name or "", _number(mark.get("device"))), [])
            if name is None or time is None or stage not in ("START", "END"):
                self._ledger.add("event_damaged")
            elif stage == "START":
                opened.append(1000 * time)
            elif opened:
                start = opened.pop()
                rows.append((track, start, max(0, 1000 * time - start), name, "annotation"))
            else:
                unmatched += 1
        self._ledger.add("event_unmatched_end", unmatched)
        self._ledger.add("event_unmatched_begin", sum(map(len, begun.values())))
        if rows:
            self.part.add_spans(add_named_steps(self.part, pl.DataFrame(rows, schema=_SPAN, orient="row")))

    def _own_line(self, frames: Any) -> str | None:  # noqa: ANN401
        """Return the innermost line of a stack that no installed package has, ``train.py:44 log``."""
        files = ((_file(one.get("filename")), one) for one in self._dicts(frames))
        own = ((file, one) for file, one in files if file and not _INSTALLED.search(file))
        return next((f"{PurePath(file).name}:{one.get('line')} {one.get('name')}" for file, one in own), None)

    def _dicts(self, listed: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
        """Yield the dictionaries of a list; count what else is in it."""
        for one in listed if isinstance(listed, list) else ():
            self._left -= 1
            if self._left < 0:
                message = f"{self._path} repeats its lists more often than any snapshot."
                raise DamagedTraceError(message, "Take the snapshot again.")
            if isinstance(one, dict):
                yield one
            else:
                self._ledger.add("event_damaged")

    def _stack(self, frames: Any) -> int | None:  # noqa: ANN401
        """Return the number of a stack, innermost frame first; None of one without frames.

        The same list stands at many events: it is looked at once.
        """
        if not isinstance(frames, list) or not frames:
            return None
        if id(frames) not in self._stack_of:
            found = tuple(
                (_file(one.get("filename")), _number(one.get("line")), _word(one.get("name")) or "?")
                for one in self._dicts(frames)
            )
            self._stack_of[id(frames)] = self._number_of.setdefault(found, len(self._number_of)) if found else None
        return self._stack_of[id(frames)]


def _completed(actions: list[str], addresses: list[int | None], times: list[int]) -> list[int | None]:
    """Return for each request to free a block when that was done, where the history has both."""
    done: list[int | None] = [None] * len(actions)
    waiting: dict[int | None, int] = {}
    for place, (action, address) in enumerate(zip(actions, addresses, strict=True)):
        if action == "free_requested":
            waiting[address] = place
        elif action == "free_completed" and address in waiting:
            done[waiting.pop(address)] = times[place]
    return done


def _number(value: Any) -> int | None:  # noqa: ANN401
    """Return an integer of 64 bits, else None."""
    return value if type(value) is int and -_TOP <= value < _TOP else None


def _size(value: Any) -> int | None:  # noqa: ANN401
    return value if type(value) is int and 0 <= value < _LARGEST // 1000 else None


def _address(value: Any) -> int | None:  # noqa: ANN401
    """Return the bits of an unsigned number."""
    return (value - _WRAP if value >= _TOP else value) if type(value) is int and 0 <= value < _WRAP else None


def _word(value: Any) -> str | None:  # noqa: ANN401
    return value if isinstance(value, str) else None


def _truth(value: Any) -> bool | None:  # noqa: ANN401
    return value if isinstance(value, bool) else None


def _file(value: Any) -> str | None:  # noqa: ANN401
    """Return a file; None for frames of C++, which have none."""
    return value if isinstance(value, str) and value not in ("", "??") else None
