"""A file of CUPTI's activity buffers → tables: what devices did, and which calls asked for it.

The blocks of the file are described in :mod:`stepscope.collect.cuda.cupti_recorder`, the records in
:mod:`stepscope.trace.cupti_layout`. Nothing in them is trusted: damaged data is left out and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from stepscope.read.common.part_builder import PartBuilder, as_json
from stepscope.read.common.source import Progress, tell_all
from stepscope.read.cupti import cupti_tables, cupti_work
from stepscope.read.cupti.activity_records import RecordDecoder
from stepscope.read.cupti.occupancy import CudaDevice, cuda_device
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.cupti_layout import BUFFER, FACTS, FETCH_INTERVAL, MAGIC, RECORDS, Kind, layout_of
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import GAPS

_MOST = 1 << 61
#: Nanoseconds before a buffer is written in which its work can have ended: of two fetches.
_BEFORE = int(2e9 * FETCH_INTERVAL)
_Time = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
_Pointer = Annotated[int, msgspec.Meta(ge=0)]


class _CuptiFacts(msgspec.Struct):
    process: int | None = None
    host: str = ""
    cuda: int = 0
    version: int = 0
    calls: dict[str, list[tuple[int, str]]] = {}
    devices: list[dict[str, Any]] = []
    names: list[tuple[_Pointer, str, str]] = []
    anchors: list[tuple[_Time, _Time, _Count]] = []
    losses: dict[str, _Count] = {}
    closed: bool = False


@dataclass
class CuptiFile:
    """What a file holds.

    Attributes:
        facts: What is said once, at the beginning.
        decoder: The records; None where no block says how they are laid out.
        spelled: Names of kernels in C++ by their names in the program.
        anchors: CUPTI's clock and the system's at some moments.
        losses: What was lost while recording, by name.
        closed: Whether the recording was closed.
        damaged_at: How many anchors came before each damage of the file.
    """

    facts: _CuptiFacts = field(default_factory=_CuptiFacts)
    decoder: RecordDecoder | None = None
    spelled: dict[str, str] = field(default_factory=dict)
    anchors: list[Anchor] = field(default_factory=list)
    losses: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    damaged_at: list[int] = field(default_factory=list)

    def device_work(self, ledger: LossLedger) -> pl.DataFrame:
        """Return kernels, copies and fills, see :func:`cupti_work.device_work`."""
        decoder = self._decoder(ledger)
        return cupti_work.device_work(decoder, self.spelled, self.devices, ledger)

    def calls(self, ledger: LossLedger) -> pl.DataFrame:
        """Return calls of the runtime and driver, see :func:`cupti_work.calls`."""
        names = {domain: dict(rows) for domain, rows in self.facts.calls.items()}
        return cupti_work.calls(self._decoder(ledger), names, ledger)

    def named_work(self, ledger: LossLedger) -> pl.DataFrame:
        """Return :meth:`device_work` in ns since the epoch, with ``dur`` and ``call``: of the launching call."""
        work = self.device_work(ledger)
        calls = self.calls(ledger).select("correlation", call=pl.col("end") - pl.col("ts"))
        # Of nested calls with one number the outer one, which takes longer, launched.
        calls = calls.drop_nulls("correlation").sort("call", descending=True).unique("correlation", keep="first")
        clock = Clock(self.anchors or [Anchor(0, 0, 0)])
        start, end = (pl.Series(cupti_tables.epochs(work[name].to_numpy(), clock)) for name in ("ts", "end"))
        placed = work.with_columns(ts=start, dur=end - start).drop("end")
        return placed.join(calls, on="correlation", how="left", maintain_order="left")

    def tables(self, ledger: LossLedger) -> dict[str, pl.DataFrame]:
        """Return the tables of the part."""
        decoder, facts = self._decoder(ledger), self.facts
        contexts = decoder.of(Kind.CONTEXT)
        content = cupti_tables.CuptiContent(
            self.device_work(ledger),
            self.calls(ledger),
            cupti_work.waits(decoder, ledger),
            cupti_work.overheads(decoder, ledger),
            cupti_work.allocations(decoder, ledger),
            facts.process,
            dict(zip(contexts["context"].tolist(), contexts["device"].tolist(), strict=True)) if len(contexts) else {},
        )
        clock = Clock(self.anchors or [Anchor(0, 0, 0)])
        ledger.add("clock_set", clock.jumps)
        part = PartBuilder(host=facts.host)
        cupti_tables.add_to(part, content, clock)
        if facts.cuda:
            said = {"cupti_version": facts.version, "cuda": f"{facts.cuda // 100}.{facts.cuda % 100}"}
            part.add_facts(as_json({**said, **({"deviceProperties": facts.devices} if facts.devices else {})}))
        if gaps := self._gaps(clock):
            part.add_facts(as_json({GAPS: gaps}))
        part.add_losses(self.losses, "cupti")
        return part.tables()

    def _gaps(self, clock: Clock) -> list[tuple[int, int | None]]:
        """Return from when to when, in ns since the epoch, records are missing; None: to the end.

        A buffer is written with an anchor before it. It holds work that had ended by then, and that was not complete
        when the buffers were fetched the time before.
        """
        times = [anchor.monotonic for anchor in self.anchors]
        gaps: list[tuple[int, int | None]] = []
        for place in self.damaged_at if self.closed else [*self.damaged_at, len(times)]:
            begin = clock.epoch(times[place - 1] - _BEFORE) if place else 0
            gaps.append((begin, clock.epoch(times[place]) if place < len(times) else None))
        return gaps

    @property
    def devices(self) -> dict[int, CudaDevice]:
        """What is known of each GPU."""
        known = {row.get("device"): cuda_device(row) for row in self.facts.devices}
        return {number: device for number, device in known.items() if isinstance(number, int) and device is not None}

    def _decoder(self, ledger: LossLedger) -> RecordDecoder:
        return self.decoder or RecordDecoder(layout_of(1300), ledger)


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a file of the ``cupti`` collector, which may still be written to, into the tables of one part.

    Raises:
        InputError: The file cannot be read, has another format, or a newer stepscope wrote it.
    """
    tables = open_capture(path, ledger).tables(ledger)
    tell_all(path, progress)
    return tables


def open_capture(path: Path, ledger: LossLedger) -> CuptiFile:
    """Decode a file.

    Raises:
        InputError: As :func:`read`.
    """
    capture, names = CuptiFile(), dict[int, str]()
    facts_decoder = msgspec.json.Decoder(_CuptiFacts)
    damage, damages = LossLedger(path.name), 0
    for sort, content in _blocks(path, damage):
        if damages != (damages := sum(loss.count for loss in damage.rows())):
            capture.damaged_at.append(len(capture.anchors))
        if sort == FACTS:
            known = _add_facts(capture, names, facts_decoder, content, ledger)
        else:
            known = capture.decoder is not None
            if capture.decoder is not None:
                capture.decoder.add(content, names)
        ledger.add("journal_unreadable", int(not known))
    for loss in damage.rows():
        ledger.add(loss.what, loss.count)
    if not capture.closed:
        ledger.add("ended_abruptly")
    return capture


def _blocks(path: Path, ledger: LossLedger) -> Iterator[tuple[bytes, bytes]]:
    """Yield sort and inflated content of every sound block."""
    for payload in read_frames(path, ledger, MAGIC):
        sort, packed = payload[:1], payload[1:]
        try:
            if sort not in (FACTS, RECORDS):
                message = "Unknown type of block."
                raise ValueError(message)  # noqa: TRY301 - counted with the others
            yield sort, unpack(packed) if sort == FACTS else _inflated(packed)
        except (ValueError, zlib.error):
            ledger.add("journal_unreadable")


def _inflated(packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    content = inflater.decompress(packed, BUFFER)
    if not inflater.eof:
        message = "The block is cut, or longer than a buffer."
        raise ValueError(message)
    return content


def _add_facts(
    capture: CuptiFile,
    names: dict[int, str],
    decoder: msgspec.json.Decoder[_CuptiFacts],
    content: bytes,
    ledger: LossLedger,
) -> bool:
    """Add what a block says; return False, and add nothing, if the collector does not write such blocks."""
    try:
        facts = decoder.decode(content)
        layout = layout_of(facts.cuda) if facts.cuda else None
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return False
    if layout is not None and capture.decoder is None:
        capture.facts, capture.decoder = facts, RecordDecoder(layout, ledger)
    names.update((pointer, symbol) for pointer, symbol, _ in facts.names)
    capture.spelled.update((symbol, spelled) for _, symbol, spelled in facts.names)
    capture.anchors += [Anchor(*anchor) for anchor in facts.anchors]
    capture.closed = capture.closed or facts.closed
    for what, count in facts.losses.items():
        capture.losses[what] = min(capture.losses.get(what, 0) + count, _MOST)
    return True
