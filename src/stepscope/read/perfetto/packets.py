"""The packets of a Perfetto trace: whose sequence each is of, which texts it means by number, and its time.

Field numbers are those of Perfetto's public ``.proto`` files, which never change.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import LARGEST_TIME
from stepscope.read.common.protobuf import BLOCK, VARINT, Fields, Messages, fields_of, varint
from stepscope.trace.losses import LossLedger

SUFFIXES = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
PACKET = 1
#: Fields of ``TracePacket``.
PROCESS_TREE, CLOCKS, TIMESTAMP, SEQUENCE, EVENT, INTERNED, FLAGS = 2, 6, 8, 10, 11, 12, 13
_DROPPED = 42
CLEARED, THREAD, COMPRESSED, CLOCK, DEFAULTS, TRACK = 41, 44, 50, 58, 59, 60
#: What else a packet says of itself, or of the recording.
_OWN = {3, 9, 33, 34, 35, 36, _DROPPED, 43, 45, 72, 79, 87, 89, 98, 124, 126}
_READ = {PROCESS_TREE, CLOCKS, TIMESTAMP, SEQUENCE, EVENT, INTERNED, FLAGS, CLEARED, THREAD, CLOCK, DEFAULTS, TRACK}
#: Packets of other recorders, which are not read.
_OTHERS = {
    1: "of the kernel (ftrace)", 5: "of Chrome's events", 7: "of the system's counters", 37: "of heap profiles",
    38: "of batteries", 39: "of Android's log", 40: "of power rails", 52: "of GPU counters",
    53: "of a GPU's render stages", 66: "of perf", 71: "of GPU memory", 133: "compressed by zstd",
}  # fmt: skip
_REALTIME, _BOOTTIME = 1, 6
#: Clocks from this number on are those of one sequence.
_OF_SEQUENCE = 64
#: Bytes that compressed packets may expand to: so many times the file's, or this number.
_RATIO, _FREE = 250, 256 << 20


def is_trace(path: Path, head: bytes) -> bool:
    """Return whether a file of that name, which begins so, is one."""
    if path.name.endswith(SUFFIXES):
        return True
    if head[:1] != b"\x0a":
        return False
    length, start = varint(head, 1)
    found = list(fields_of(head, start, min(start + length, len(head)))) if start else []
    whole = [number for number, _, _, _, end in found if end < len(head)]
    known = _READ | _OWN | _OTHERS.keys() | {COMPRESSED}
    said = {(number, wire) for number, wire, *_ in found}
    return bool(whole) and known >= set(whole) and bool(said & {(SEQUENCE, VARINT), (36, BLOCK), (89, BLOCK)})


@dataclass(frozen=True, eq=False)
class Packets:
    """The packets of a trace, in the order of the file.

    Attributes:
        fields: Their fields.
        ledger: Counts losses.
    """

    fields: Fields
    ledger: LossLedger

    @staticmethod
    def of(content: bytes, path: Path, ledger: LossLedger, rank: int | None = None) -> Packets:
        """Return the packets of a file's content, or those of a rank's sequence; those after a damage are lost.

        Raises:
            DamagedTraceError: Compressed packets expand as no trace does.
        """
        whole = Messages.whole(content).fields()
        _, messages = whole.within(PACKET)
        packed = messages.fields().within(COMPRESSED)[1]
        cut = bool(whole.broken.any())
        if len(packed):
            content, damaged = _expanded(content, messages, path)
            ledger.add("event_damaged", damaged)
            messages = Messages.whole(content).fields().within(PACKET)[1]
        if cut:
            ledger.add_cut()
        fields = messages.fields()
        if rank is not None:  # what the first sequence says of the clocks holds for all
            own = (fields.integers(SEQUENCE) == rank + 1).fill_null(value=False).to_numpy()
            own[fields.within(CLOCKS)[0]] = True
            fields = Messages(messages.content, messages.start[own], messages.end[own]).fields()
        ledger.add("event_damaged", int(fields.broken.sum()))
        packets = Packets(fields, ledger)
        packets.count_others()
        packets.count_dropped()
        return packets

    def __len__(self) -> int:
        return len(self.fields.messages)

    def count_others(self) -> None:
        """Count what is not read, by sort."""
        numbers, counts = np.unique(self.fields.table[:, 1], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number not in _READ | _OWN:
                self.ledger.add("event_unknown_kind", count, f"Packets {_OTHERS.get(number, f'of field {number}')}.")

    def count_dropped(self) -> None:
        """Count where packets of a sequence are missing; its first one says so, too, whatever was before."""
        says = np.flatnonzero((self.fields.integers(_DROPPED) == 1).fill_null(value=False).to_numpy())
        first = np.unique(self.sequence, return_index=True)[1]
        self.ledger.add("events_dropped", int((~np.isin(says, first)).sum()), "Perfetto: packets before others.")

    @cached_property
    def sequence(self) -> Integers:
        """The sequence of each packet; 0 without one."""
        numbers: Integers = self.fields.integers(SEQUENCE).fill_null(0).to_numpy()
        return numbers

    @cached_property
    def state(self) -> Integers:
        """The number of the state of each packet's sequence: texts and defaults hold until the state is cleared."""
        flags = self.fields.integers(FLAGS).fill_null(0).to_numpy() & 1
        cleared = (flags > 0) | (self.fields.integers(CLEARED).fill_null(0).to_numpy() > 0)
        order = np.argsort(self.sequence, kind="stable")
        begins = cleared[order] | (np.diff(self.sequence[order], prepend=-1) != 0)
        begins[:1] = True
        state = np.empty(len(order), np.int64)
        state[order] = np.cumsum(begins)
        return state

    def default(self, *path: int) -> pl.Series:
        """Return an integer of the defaults that hold for each packet, by the fields on the way to it; null if none."""
        owners, messages = self.fields.within(DEFAULTS)
        for number in path[:-1]:
            inner, messages = messages.fields().within(number)
            owners = owners[inner]
        given = np.zeros(len(self), np.int64)
        known = np.zeros(len(self), np.bool_)
        values = messages.fields().integers(path[-1])
        there = values.is_not_null().to_numpy()
        given[owners[there]], known[owners[there]] = values.fill_null(0).to_numpy()[there], True
        column = pl.Series(given).set(pl.Series(~known), None)
        if not known.any():
            return column
        return pl.DataFrame({"value": column, "state": self.state}).select(
            pl.col("value").fill_null(strategy="forward").over("state")
        )["value"]

    def texts(self, number: int) -> pl.DataFrame:
        """Return the texts of a vocabulary that packets number: ``state``, ``number``, ``text``."""
        owners, interned = self.fields.within(INTERNED)
        inner, messages = interned.fields().within(number)
        fields = messages.fields()
        columns = {
            "state": self.state[owners[inner]],
            "number": fields.integers(1),
            "text": fields.texts(2, self.ledger).fill_null("").cast(pl.Categorical),
        }
        return pl.DataFrame(columns).drop_nulls("number").unique(["state", "number"], keep="last", maintain_order=True)

    @cached_property
    def times(self) -> pl.Series:
        """The time of each packet, ns since the epoch if the file says how its clocks relate; null without one."""
        stamp = self.fields.integers(TIMESTAMP)
        clock = self.fields.integers(CLOCK)
        default = self.default(CLOCK)
        clock = clock.zip_with(clock.is_not_null(), default).fill_null(_BOOTTIME)
        numbers, ts = clock.to_numpy(), stamp.fill_null(-1).to_numpy().copy()
        for number in np.unique(numbers).tolist():
            if number < _OF_SEQUENCE:
                ts[numbers == number] += np.where(ts[numbers == number] >= 0, self._shifts.get(number, 0), 0)
        self._place(ts, numbers)
        known = (stamp.is_not_null().to_numpy()) & (ts >= 0) & (ts < LARGEST_TIME)
        return pl.Series("ts", ts).set(pl.Series(~known), None)

    @cached_property
    def _snapshots(self) -> pl.DataFrame:
        owners, snapshots = self.fields.within(CLOCKS)
        inner, clocks = snapshots.fields().within(1)
        fields = clocks.fields()
        columns = {name: fields.integers(number) for number, name in enumerate(("clock", "at", "steps", "unit"), 1)}
        return pl.DataFrame({"packet": owners[inner], **columns}).drop_nulls(["clock", "at"])

    @cached_property
    def _shifts(self) -> dict[int, int]:
        """Clock of the system → what to add to its times: those of the first snapshot that has the time of day too."""
        rows = self._snapshots.filter(pl.col("at").is_between(0, LARGEST_TIME), pl.col("clock") < _OF_SEQUENCE)
        day = rows.filter(pl.col("clock") == _REALTIME)
        base = day if day.height else rows.filter(pl.col("clock") == _BOOTTIME)
        both = rows.join(base.select("packet", base="at").unique("packet", keep="first"), on="packet")
        found = both.unique("clock", keep="first", maintain_order=True)
        return dict(found.select("clock", pl.col("base") - pl.col("at")).rows())

    def _place(self, ts: Integers, clock: Integers) -> None:
        """Place the times of clocks of sequences, many of which count on from the packet before."""
        chosen = np.flatnonzero(clock >= _OF_SEQUENCE)
        if not len(chosen):
            return
        near: dict[int, int] = {}
        snapshots: dict[int, list[tuple[int, list[int]]]] = {}
        for packet, number, at, steps, unit in self._snapshots.rows():
            if number in self._shifts:
                near[packet] = at + self._shifts[number]
            elif number >= _OF_SEQUENCE:
                snapshots.setdefault(packet, []).append((number, [at, steps or 0, unit or 1]))
        now: dict[tuple[int, int], list[int]] = {}
        for packet in np.union1d(chosen, np.array(list(snapshots), np.int64)).tolist():
            sequence = int(self.sequence[packet])
            for number, (at, steps, unit) in snapshots.get(packet, ()):
                now[sequence, number] = [at, steps, unit, near.get(packet, at * unit) - at * unit]
            if clock[packet] >= _OF_SEQUENCE and ts[packet] >= 0:
                state = now.get((sequence, int(clock[packet])))
                if state is not None:
                    state[0] = state[0] * (state[1] > 0) + int(ts[packet])
                at = -1 if state is None else state[0] * state[2] + state[3]
                ts[packet] = at if 0 <= at < LARGEST_TIME else -1


def _expanded(content: bytes, messages: Messages, path: Path) -> tuple[bytes, int]:
    """Return the content with the packets that compressed ones hold in their place; and how many are damaged."""
    parts: list[bytes] = []
    damaged = total = 0
    limit = max(_FREE, _RATIO * len(content))
    owners, packed = messages.fields().within(COMPRESSED)
    inside = dict(zip(owners.tolist(), zip(packed.start.tolist(), packed.end.tolist(), strict=True), strict=True))
    for number, (start, end) in enumerate(zip(messages.start.tolist(), messages.end.tolist(), strict=True)):
        if number not in inside:
            length = end - start
            parts += (bytes([PACKET << 3 | BLOCK]), _varint(length), content[start:end])
            continue
        begin, stop = inside[number]
        inflater = zlib.decompressobj()
        try:
            parts.append(inflater.decompress(content[begin:stop], limit - total + 1))
        except zlib.error:
            damaged += 1
            continue
        damaged += not inflater.eof
        total += len(parts[-1])
        if total > limit:
            message = f"{path} expands to more than {_RATIO} times its size; traces expand less."
            raise DamagedTraceError(message, "Record it again without compression.")
    return b"".join(parts), damaged


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
