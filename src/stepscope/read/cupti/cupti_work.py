"""Records of CUPTI → frames: work on devices, calls on threads, waits; times still those of CUPTI's clock.

Names of copies, fills and waits are spelled as Kineto does, so that analyses see one vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import Mask, coded, sound
from stepscope.read.cupti.activity_records import RecordDecoder, Records
from stepscope.read.cupti.occupancy import CudaDevice, achieved, active_blocks, theoretical
from stepscope.trace.cupti_layout import Kind
from stepscope.trace.losses import LossLedger

#: ``CUpti_ActivityMemcpyKind``, ``CUpti_ActivityMemoryKind`` and ``CUpti_ActivitySynchronizationType`` by number.
COPIES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORIES = ("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_WAITS = ("Unknown Sync", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
#: ``CUpti_ActivityOverheadKind`` by number, from 1 << 16 on in steps of that.
_OVERHEADS = (
    "Unknown Overhead",
    "Buffer Flush",
    "Instrumentation",
    "Resource",
    "Runtime Triggered Module Loading",
    "Lazy Function Loading",
    "Command Buffer Full",
    "Activity Buffer Request",
    "UVM Activity Init",
    "Driver Compiler",
)
_COMPILER = 9

#: Times and numbers from these on are damage.
_MOST_TIME, _MOST_NUMBER = 1 << 62, 1 << 31


def _sound(records: Records, ledger: LossLedger) -> Mask:
    """Return which records have possible times and numbers; count the others. CUPTI writes zero for an unknown time."""
    start, end = records["start"], records["end"]
    placed = np.ones(len(records), np.bool_)
    if "device" in (records.dtype.names or ()):
        placed = (records["device"] < _MOST_NUMBER) & (records["stream"] < _MOST_NUMBER)
    return sound(
        ledger,
        event_without_duration=(start != 0) & (end != 0),
        event_bad_time=(start < _MOST_TIME) & (end < _MOST_TIME),
        event_negative_duration=end >= start,
        device_records_damaged=placed,
    )


def device_work(
    decoder: RecordDecoder, spelled: Mapping[str, str], devices: Mapping[int, CudaDevice], ledger: LossLedger
) -> pl.DataFrame:
    """Return one row per kernel, copy and fill.

    Returns:
        ``ts`` and ``end`` (CUPTI's clock), ``kind``, ``name``, ``symbol`` (null for copies and fills), ``device``,
        ``context``, ``stream``, ``correlation``, and, null where the work has none: ``grid``, ``block``, ``registers``,
        ``static_shared`` and ``dynamic_shared`` (bytes of a block), ``cache`` (executed x 16 + requested),
        ``theoretical`` (0 to 1), ``occupancy`` (%), ``blocks_per_sm``, ``warps_per_sm``, ``bytes``, ``copy``,
        ``source`` and ``destination`` (numbers of :data:`COPIES` and :data:`MEMORIES`), ``flags``, ``graph``,
        ``graph_node``, ``priority``.
    """
    kernels = [_kernels(decoder, kind, spelled, devices, ledger) for kind in (Kind.CONCURRENT_KERNEL, Kind.KERNEL)]
    copies = [_copies(decoder.of(kind), ledger) for kind in (Kind.MEMCPY, Kind.MEMCPY2)]
    parts = [*kernels, *copies, _fills(decoder.of(Kind.MEMSET), ledger)]
    none = {name: pl.lit(None, kind) for name, kind in _WORK.items()}
    whole = [part.with_columns(**{name: none[name] for name in none.keys() - {*part.columns}}) for part in parts]
    return pl.concat([part.select(list(_WORK)).cast(_WORK) for part in whole])  # type: ignore[arg-type]


_WORK: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("ts", "end"), pl.Int64),
    "kind": pl.String,
    **dict.fromkeys(("name", "symbol"), pl.Categorical()),
    **dict.fromkeys(("device", "context", "stream", "correlation"), pl.Int64),
    **dict.fromkeys(("grid", "block"), pl.List(pl.Int64)),
    **dict.fromkeys(("registers", "static_shared", "dynamic_shared", "cache"), pl.Int64),
    **dict.fromkeys(("theoretical", "occupancy", "blocks_per_sm", "warps_per_sm"), pl.Float64),
    **dict.fromkeys(("bytes", "copy", "source", "destination", "flags", "graph", "graph_node", "priority"), pl.Int64),
}


def _numbers(records: Records, names: Sequence[str]) -> dict[str, Integers]:
    """Return fields as integers of 64 bits; those that this version lacks are left out."""
    known = records.dtype.names or ()
    return {name: records[name].astype(np.int64) for name in names if name in known}


def _placed(records: Records) -> dict[str, Any]:
    columns: dict[str, Any] = _numbers(
        records, ("device", "context", "stream", "correlation", "graph", "graph_node", "bytes")
    )
    for name in ("correlation", "graph", "graph_node"):
        if name in columns:
            columns[name] = pl.Series(columns[name], dtype=pl.Int64).replace(0, None)
    times = {"ts": records["start"].astype(np.int64), "end": records["end"].astype(np.int64)}
    return {**times, **columns}


def _kernels(
    decoder: RecordDecoder,
    kind: Kind,
    spelled: Mapping[str, str],
    devices: Mapping[int, CudaDevice],
    ledger: LossLedger,
) -> pl.DataFrame:
    records, names = decoder.of(kind), decoder.names(kind)
    if not len(records):
        return pl.DataFrame()
    kept = _sound(records, ledger)
    records, names = records[kept], names[kept]
    columns = _placed(records)
    columns |= _numbers(records, ("registers", "static_shared", "dynamic_shared", "cache", "priority"))
    sizes = {
        name: np.stack([records[f"{name}_{axis}"] for axis in "xyz"], axis=1).astype(np.int64)
        for name in ("grid", "block")
    }
    texts = decoder.texts
    columns["symbol"] = coded(texts, names)
    columns["name"] = coded([spelled.get(text, text) for text in texts], names)
    columns |= {name: pl.Series(values).arr.to_list() for name, values in sizes.items()}
    columns |= _occupancy(columns, sizes, devices)
    return pl.DataFrame(columns).with_columns(kind=pl.lit("kernel"))


def _occupancy(
    columns: Mapping[str, Any], sizes: Mapping[str, Integers], devices: Mapping[int, CudaDevice]
) -> dict[str, pl.Series]:
    """Return how kernels fill the multiprocessors; null for GPUs of which nothing is known."""
    shape = len(columns["ts"])
    found = {name: np.full(shape, np.nan) for name in ("theoretical", "occupancy", "blocks_per_sm", "warps_per_sm")}
    blocks, threads = (np.maximum(values, 0).astype(np.float64).prod(axis=1) for values in sizes.values())
    for number, device in devices.items():
        here = columns["device"] == number
        each = np.minimum(threads[here], 1 << 20).astype(np.int64)
        shared = np.maximum(columns["static_shared"][here] + columns["dynamic_shared"][here], 0)
        active = active_blocks(device, each, columns["registers"][here], shared)
        found["theoretical"][here] = theoretical(device, each, active)
        found["occupancy"][here] = achieved(device, blocks[here], each, active)
        found["blocks_per_sm"][here] = blocks[here] / device.multiprocessors
        found["warps_per_sm"][here] = blocks[here] / device.multiprocessors * threads[here] / device.warp_threads
    return {name: pl.Series(values).fill_nan(None) for name, values in found.items()}


def _copies(records: Records, ledger: LossLedger) -> pl.DataFrame:
    if not len(records):
        return pl.DataFrame()
    records = records[_sound(records, ledger)]
    kinds = {"copy": "copy_kind", "source": "source_kind", "destination": "destination_kind", "flags": "flags"}
    numbers = {name: records[field].astype(np.int64) for name, field in kinds.items()}
    code = numbers["copy"] << 16 | numbers["source"] << 8 | numbers["destination"]
    distinct, inverse = np.unique(code, return_inverse=True)
    names = [_copy_name(number >> 16, number >> 8 & 255, number & 255) for number in distinct.tolist()]
    return pl.DataFrame({**_placed(records), **numbers, "name": coded(names, inverse)}).with_columns(
        kind=pl.lit("memcpy")
    )


def _copy_name(copy: int, source: int, destination: int) -> str:
    return f"Memcpy {_at(COPIES, copy)} ({_at(MEMORIES, source)} -> {_at(MEMORIES, destination)})"


def _fills(records: Records, ledger: LossLedger) -> pl.DataFrame:
    if not len(records):
        return pl.DataFrame()
    records = records[_sound(records, ledger)]
    memory = records["memory_kind"].astype(np.int64)
    distinct, inverse = np.unique(memory, return_inverse=True)
    names = coded([f"Memset ({_at(MEMORIES, number)})" for number in distinct.tolist()], inverse)
    columns = {**_placed(records), "destination": memory, "name": names}
    return pl.DataFrame(columns).with_columns(kind=pl.lit("memset"))


def _at(texts: Sequence[str], number: int) -> str:
    return texts[number] if number < len(texts) else texts[0]


def calls(decoder: RecordDecoder, names: Mapping[str, Mapping[int, str]], ledger: LossLedger) -> pl.DataFrame:
    """Return ts, end, kind, name, process, thread, correlation of each call; ``names``: API → number → its name."""
    parts = [_calls(decoder.of(kind), kind.name.lower(), names, ledger) for kind in (Kind.RUNTIME, Kind.DRIVER)]
    return pl.concat([part.cast(_CALLS).select(list(_CALLS)) for part in parts])  # type: ignore[arg-type]


_CALLS: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("ts", "end"), pl.Int64),
    "kind": pl.String,
    "name": pl.Categorical(),
    **dict.fromkeys(("process", "thread", "correlation"), pl.Int64),
}


def _calls(records: Records, kind: str, names: Mapping[str, Mapping[int, str]], ledger: LossLedger) -> pl.DataFrame:
    if not len(records):
        return pl.DataFrame(schema=_CALLS)
    records = records[_sound(records, ledger)]
    distinct, inverse = np.unique(records["callback"], return_inverse=True)
    known = names.get(kind, {})
    texts = [known.get(number, f"{kind} call {number}") for number in distinct.tolist()]
    return pl.DataFrame(
        {
            "ts": records["start"].astype(np.int64),
            "end": records["end"].astype(np.int64),
            "name": coded(texts, inverse),
            **_numbers(records, ("process", "thread")),
            "correlation": pl.Series(records["correlation"].astype(np.int64)).replace(0, None),
        }
    ).with_columns(kind=pl.lit(kind))


def waits(decoder: RecordDecoder, ledger: LossLedger) -> pl.DataFrame:
    """Return one row per wait for a stream, event or context: ts, end, name, context, stream, correlation."""
    records = decoder.of(Kind.SYNCHRONIZATION)
    if not len(records):
        return pl.DataFrame(schema=_WAIT_COLUMNS)
    records = records[_sound(records, ledger)]
    names = coded(_WAITS, np.where(records["sort"] < len(_WAITS), records["sort"], 0))
    columns = _numbers(records, ("context", "stream", "correlation"))
    times = {"ts": records["start"].astype(np.int64), "end": records["end"].astype(np.int64)}
    return pl.DataFrame({**times, "name": names, **columns}).cast(_WAIT_COLUMNS)  # type: ignore[arg-type]


_WAIT_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("ts", "end"), pl.Int64),
    "name": pl.Categorical(),
    **dict.fromkeys(("context", "stream", "correlation"), pl.Int64),
}


def overheads(decoder: RecordDecoder, ledger: LossLedger) -> pl.DataFrame:
    """Return one row per span of CUPTI's and the driver's own work: ts, end, name."""
    records = decoder.of(Kind.OVERHEAD)
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"ts": pl.Int64, "end": pl.Int64, "name": pl.Categorical()}
    if not len(records):
        return pl.DataFrame(schema=schema)
    records = records[_sound(records, ledger)]
    sort = np.where(records["overhead_kind"] == 1, _COMPILER, records["overhead_kind"] >> 16)
    names = coded(_OVERHEADS, np.where(sort < len(_OVERHEADS), sort, 0))
    times = {"ts": records["start"].astype(np.int64), "end": records["end"].astype(np.int64)}
    return pl.DataFrame({**times, "name": names}).cast(schema)  # type: ignore[arg-type]


def allocations(decoder: RecordDecoder, ledger: LossLedger) -> pl.DataFrame:
    """Return one row per piece of device memory taken or freed: ts, device, address, bytes (negative when freed)."""
    records = decoder.of(Kind.MEMORY2)
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "ts": pl.Int64,
        "device": pl.String,
        "address": pl.Int64,
        "bytes": pl.Int64,
    }
    if not len(records):
        return pl.DataFrame(schema=schema)
    on_device = np.isin(records["memory_kind"], (MEMORIES.index("Device"), MEMORIES.index("Managed")))
    timed = (records["start"] > 0) & (records["start"] < _MOST_TIME) & (records["bytes"] < _MOST_TIME)
    known = np.isin(records["operation"], (1, 2)) & (records["device"] < _MOST_NUMBER)
    ledger.add("device_records_damaged", int((on_device & ~(timed & known)).sum()))
    records = records[on_device & timed & known]
    size = records["bytes"].astype(np.int64)
    device = pl.Series(records["device"].astype(np.int64)).cast(pl.String)
    return pl.DataFrame(
        {
            "ts": records["start"].astype(np.int64),
            "device": "cuda:" + device,
            "address": records["address"].view(np.int64)
            if records["address"].flags.c_contiguous
            else np.ascontiguousarray(records["address"]).view(np.int64),
            "bytes": np.where(records["operation"] == 2, -size, size),
        },
        schema=schema,
    )
