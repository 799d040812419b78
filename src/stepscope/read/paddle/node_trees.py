"""The protobuf files of Paddle's profiler (``export_protobuf``, ``….paddle_trace.pb``) → tables.

The format is Paddle's ``nodetree.proto``: per thread the list of its events, each with the calls of CUDA, memory events
and shapes that belong to it. Files of eager training hold a type of event that Paddle's own definition of the format
lacks, so that its ``load_profiler_result`` gives up on them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common.nesting import Integers
from stepscope.read.common.protobuf import Fields, Messages
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.paddle.paddle_tables import DEVICE, HOST, MEMORY, MEMORY_TYPES, TYPES, PaddleRecording, tables
from stepscope.trace.losses import LossLedger

# A version, and the number of the recording in its process.
_HEAD = re.compile(rb"\x0a[\x03-\x14]\d+\.\d+(?:\.\d+)?(?:\x10|$)")
#: Name and parent of the node that Paddle puts above all others of a thread.
_ROOT, _NO_PARENT = "root node", -1

# Fields of NodeTreesProto, ThreadNodeTreeProto, HostTraceEventNodeProto and CudaRuntimeTraceEventNodeProto.
_VERSION, _SPAN, _THREADS, _EXTRA, _PROPERTIES = 1, 2, 3, 4, 5
_NODES = 2
_PARENT, _EVENT, _CALLS, _MEMORY, _SUPPLEMENTS = 2, 3, 4, 5, 6
_CALL, _DEVICE_WORK = 1, 2
# Of DeviceTraceEventProto: what is known of kernels, copies and fills.
_KERNEL, _COPY, _FILL = 9, 10, 11
#: Paddle numbers its types of events from 0; a number from here on is damage.
_MOST_TYPES = 64

_PROPERTY_NAMES = {
    "id": 1,
    "totalGlobalMem": 3,
    "computeMajor": 4,
    "computeMinor": 5,
    "maxThreadsPerBlock": 6,
    "maxThreadsPerMultiprocessor": 7,
    "regsPerBlock": 8,
    "regsPerMultiprocessor": 9,
    "warpSize": 10,
    "sharedMemPerBlock": 11,
    "sharedMemPerMultiprocessor": 12,
    "smCount": 13,
    "sharedMemPerBlockOptin": 14,
}


def is_trace(head: bytes) -> bool:
    """Return whether a file that begins so is one."""
    return _HEAD.match(head) is not None


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file; see :func:`stepscope.read.paddle.paddle_tables.tables`.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It ends before its first event.
    """
    whole = Messages.whole(b"".join(read_blocks(path, ledger, progress))).fields()
    # Paddle says last how busy the process and the machine were.
    complete = not whole.broken[0] and len(whole.within(_EXTRA)[0]) > 0
    if not complete:
        ledger.add_cut()
    # The tree of a thread is one long message; of one that the file ends in, what comes before the end is read.
    threads = whole.within(_THREADS, cut=True)[1].fields()
    nodes = threads.within(_NODES, cut=True)[1].fields()
    if not complete and not len(nodes.messages):
        message = f"{path} is damaged: it ends before its first event."
        raise DamagedTraceError(message, "Record it again, or copy it again from where it was recorded.")
    calls = nodes.within(_CALLS)[1].fields()
    ledger.add("event_damaged", int(threads.broken.sum()))
    host = pl.concat([_host(nodes, ledger), _calls(calls, ledger)], how="diagonal")
    device, memory = _device(calls, ledger), _memory(nodes, ledger)
    recorded = PaddleRecording(host, device, memory, _extra(whole, ledger), _metadata(whole, ledger))
    return tables(recorded, ledger)


def _only(fields: Fields, number: int) -> tuple[Integers, Fields]:
    """Return the messages in a field that occurs at most once, and which message each lies in; of several, the last."""
    owner, messages = fields.within(number)
    last = np.flatnonzero(np.append(np.diff(owner) > 0, True))[: len(owner)]
    return owner[last], Messages(messages.content, messages.start[last], messages.end[last]).fields()


def _placed(values: pl.Series, owner: Integers, count: int) -> pl.Series:
    """Return the values of the messages that they lie in, null for all others."""
    if not len(owner):
        return pl.Series([None], dtype=values.dtype).new_from_index(0, count)
    place = np.full(count, -1, np.int64)
    place[owner] = np.arange(len(owner))
    return values.gather(pl.Series(place).replace(-1, None))


def _type(numbers: pl.Series, names: tuple[str, ...]) -> pl.Series:
    """Return the names of numbers: of small ones that a later version may have added, too; null for all others."""
    known = [*names, *(f"number {number}" for number in range(len(names), _MOST_TYPES)), None]
    code = numbers.fill_null(-1).to_numpy()
    code = np.where((code < 0) | (code >= len(known)), len(known) - 1, code)
    return pl.Series(known, dtype=pl.String)[pl.Series(code)]


def _host(nodes: Fields, ledger: LossLedger) -> pl.DataFrame:
    """Return the events of threads; the nodes that only hold a thread's tree together are none."""
    owner, event = _only(nodes, _EVENT)
    ledger.add("event_damaged", len(nodes.messages) - len(owner))
    start = event.integers(3)
    frame = pl.DataFrame(
        {
            "name": event.texts(1, ledger),
            "type": _type(event.integers(2), TYPES),
            "ts": start,
            "dur": event.integers(4) - start,
            "process": event.integers(5),
            "thread": event.integers(6),
            "root": nodes.integers(_PARENT)[pl.Series(owner)] == _NO_PARENT,
            **{
                name: column[pl.Series(owner)]
                for name, column in _supplements(nodes, len(nodes.messages), ledger).items()
            },
        }
    )
    is_root = pl.col("root").fill_null(value=False) & (pl.col("name") == _ROOT).fill_null(value=False)
    return frame.filter(~is_root).drop("root").cast({name: kind for name, kind in HOST.items() if name in frame})


def _supplements(nodes: Fields, count: int, ledger: LossLedger) -> dict[str, pl.Series]:
    """Return shapes and types of inputs, and the Python stack, of each node; null where Paddle recorded none."""
    node, holders = nodes.within(_SUPPLEMENTS)
    inner, event = _only(holders.fields(), 1)
    owner = node[inner]
    columns = {
        "shapes": _lists(len(owner), *_shapes(event)),
        "dtypes": _lists(len(owner), *_dtypes(event, ledger)),
        "stack": event.texts(7, ledger).replace("", None),
    }
    return {name: _placed(column, owner, count) for name, column in columns.items()}


def _lists(count: int, owner: Integers, values: list[Any]) -> pl.Series:
    """Return for each of ``count`` operators the values of its inputs as a JSON list; null where there are none."""
    lists: dict[int, list[Any]] = {}
    for operator, value in zip(owner.tolist(), values, strict=True):
        lists.setdefault(operator, []).append(value)
    return pl.Series([json.dumps(lists[place]) if place in lists else None for place in range(count)], dtype=pl.String)


def _shapes(event: Fields) -> tuple[Integers, list[list[int]]]:
    """Return the shapes of inputs, which lie in lists by name of the input, and the operator of each."""
    operator, named = event.within(5)
    which, vectors = named.fields().within(2)
    vector, shapes = vectors.fields().within(1)
    sizes: list[list[int]] = [[] for _ in range(len(shapes))]
    for shape, size in zip(*(column.tolist() for column in shapes.fields().every_integer(1)), strict=True):
        sizes[shape].append(size)
    return operator[which[vector]], sizes


def _dtypes(event: Fields, ledger: LossLedger) -> tuple[Integers, list[str]]:
    """Return the types of inputs, which lie in lists by name of the input, and the operator of each."""
    operator, named = event.within(6)
    which, vectors = named.fields().within(2)
    vector, dtypes = vectors.fields().every_text(1, ledger)
    return operator[which[vector]], dtypes


def _calls(calls: Fields, ledger: LossLedger) -> pl.DataFrame:
    """Return the calls of CUDA on threads."""
    _, call = _only(calls, _CALL)
    start = call.integers(2)
    return pl.DataFrame(
        {
            "name": call.texts(1, ledger),
            "type": pl.Series(["CudaRuntime"]).new_from_index(0, len(call.messages)),
            "ts": start,
            "dur": call.integers(3) - start,
            "process": call.integers(4),
            "thread": call.integers(5),
            "correlation": call.integers(6),
        }
    )


def _device(calls: Fields, ledger: LossLedger) -> pl.DataFrame:
    """Return the work on streams."""
    work = _only(calls.within(_DEVICE_WORK)[1].fields(), 1)[1]
    start, count = work.integers(3), len(work.messages)
    if not count:
        return pl.DataFrame(schema=DEVICE)
    of_sorts = (_only(work, number) for number in (_COPY, _FILL))
    copied, filled = (_placed(details.integers(1), owner, count) for owner, details in of_sorts)
    columns = {
        "name": work.texts(1, ledger),
        "type": _type(work.integers(2), TYPES),
        "ts": start,
        "dur": work.integers(4) - start,
        "device": work.integers(5),
        "context": work.integers(6),
        "stream": work.integers(7),
        "correlation": work.integers(8),
        **_kernels(work, count),
        "bytes": copied.fill_null(filled),
    }
    frame = pl.DataFrame(columns)
    # Bytes in a nanosecond are gigabytes in a second.
    bandwidth = pl.when((pl.col("type") == "Memcpy") & (pl.col("dur") > 0)).then(pl.col("bytes") / pl.col("dur"))
    return frame.with_columns(bandwidth=bandwidth).cast(DEVICE)  # type: ignore[arg-type]


def _kernels(work: Fields, count: int) -> dict[str, pl.Series]:
    owner, kernel = _only(work, _KERNEL)
    number = {place: kernel.integers(place).fill_null(0) for place in range(1, 10)}
    sizes = [pl.DataFrame([number[place] for place in places]) for places in ((4, 5, 6), (1, 2, 3))]
    grid, block = (pl.Series(frame.rows(), dtype=pl.List(pl.Int64)) for frame in sizes)
    columns = {
        "grid": grid,
        "block": block,
        "registers": number[9],
        "shared_memory": number[7] + number[8],
        "blocks_per_sm": kernel.floats(15),
        "warps_per_sm": kernel.floats(16),
        # Paddle's JSON gives it in %, as the table does.
        "occupancy": kernel.floats(17) * 100,
    }
    return {name: _placed(column, owner, count) for name, column in columns.items()}


def _memory(nodes: Fields, ledger: LossLedger) -> pl.DataFrame:
    event = _only(nodes.within(_MEMORY)[1].fields(), 1)[1]
    columns = {
        "ts": event.integers(1),
        "process": event.integers(4),
        "thread": event.integers(5),
        "type": _type(event.integers(2), MEMORY_TYPES),
        "address": event.integers(3),
        "bytes": event.integers(6),
        "place": event.texts(7, ledger),
        "allocated": event.integers(8),
        "reserved": event.integers(9),
    }
    return pl.DataFrame(columns).cast(MEMORY)  # type: ignore[arg-type]


def _extra(whole: Fields, ledger: LossLedger) -> dict[str, str]:
    pairs = whole.within(_EXTRA)[1].fields()
    keys, values = (pairs.texts(number, ledger).fill_null("").to_list() for number in (1, 2))
    return dict(zip(keys, values, strict=True))


def _metadata(whole: Fields, ledger: LossLedger) -> dict[str, str]:
    facts = {"schemaVersion": whole.texts(_VERSION, ledger)[0], "span_index": whole.integers(_SPAN)[0]}
    properties = whole.within(_PROPERTIES)[1].fields()
    columns = {key: properties.integers(number).to_list() for key, number in _PROPERTY_NAMES.items()}
    columns["name"] = properties.texts(2, ledger).to_list()
    devices = [{key: values[place] for key, values in columns.items()} for place in range(len(properties.messages))]
    if devices:
        facts["deviceProperties"] = devices
    return {key: json.dumps(value) for key, value in facts.items() if value is not None}
