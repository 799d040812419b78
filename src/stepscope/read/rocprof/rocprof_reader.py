"""JSON of rocprofv3 (``--output-format json``): file → tables.

A file holds one process: tables of names, and a list of records for each kind of activity. Field names are those of
rocprofiler-sdk's ``rocprofiler_buffer_tracing_*_record_t``. Times are of the system's boot clock, ns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import polars as pl

from stepscope.errors import DamagedTraceError
from stepscope.read.common import communication, stated_totals
from stepscope.read.common.part_builder import PartBuilder, TrackRow, as_json, sound_spans
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Progress, read_blocks
from stepscope.read.common.stated_totals import StatedTotals
from stepscope.trace.losses import LossLedger

_HEAD = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_GPU = 2
#: Lists of records of calls on host threads → the kind of span that they are.
_CALLS = {
    "hip_api": "runtime", "hsa_api": "driver", "marker_api": "annotation", "rccl_api": "runtime",
    "rocdecode_api": "runtime", "rocjpeg_api": "runtime",
}  # fmt: skip
#: Lists whose records are read, and those that no result uses; what others hold keeps its time.
_READ = ("kernel_dispatch", "memory_copy", *_CALLS)
_UNUSED = ("memory_allocation", "scratch_memory", "pc_sample_host_trap", "pc_sample_stochastic")
#: Domain of the summary (``rocprofv3 --stats``) → list of the records that it sums up, and what they are.
_SUMMED = {"KERNEL_DISPATCH": ("kernel_dispatch", "kernels"), "MEMORY_COPY": ("memory_copy", "copies")}
#: ``rocprofiler_memory_copy_operation_t`` → what Kineto calls the copy.
_COPIES = {
    "HOST_TO_HOST": "Memcpy HtoH", "HOST_TO_DEVICE": "Memcpy HtoD", "DEVICE_TO_HOST": "Memcpy DtoH",
    "DEVICE_TO_DEVICE": "Memcpy DtoD",
}  # fmt: skip

_Sort = TypeVar("_Sort")
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _RocprofHandle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: _Number = 0


class _Sizes(msgspec.Struct):
    x: _Number = 1
    y: _Number = 1
    z: _Number = 1

    def listed(self) -> list[int]:
        return [self.x, self.y, self.z]


class _Dispatch(msgspec.Struct):
    agent_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    queue_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    kernel_id: int = 0
    group_segment_size: _Number = 0
    workgroup_size: _Sizes = msgspec.field(default_factory=_Sizes)
    grid_size: _Sizes = msgspec.field(default_factory=_Sizes)


class _Record(msgspec.Struct):
    """A record of any list: what happened, when, on which thread; and what only some lists have."""

    start_timestamp: _Number
    end_timestamp: _Number
    kind: int = 0
    operation: int = 0
    thread_id: _Number = 0
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)
    dispatch_info: _Dispatch | None = None
    agent_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    queue_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    src_agent_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    dst_agent_id: _RocprofHandle = msgspec.field(default_factory=_RocprofHandle)
    bytes: _Number | None = None


class _Agent(msgspec.Struct):
    id: _RocprofHandle
    type: int = 0
    logical_node_type_id: int = 0
    product_name: str = ""
    name: str = ""


class _KernelSymbol(msgspec.Struct):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: _Number = 0


class _Operations(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Marker(msgspec.Struct):
    key: int = 0
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Operations] = []
    marker_api: list[_Marker] = []


class _RocprofNode(msgspec.Struct):
    hostname: str = ""


class _RocprofMetadata(msgspec.Struct):
    pid: _Number | None = None
    node: _RocprofNode = msgspec.field(default_factory=_RocprofNode)


class _RocprofSums(msgspec.Struct):
    count: _Number
    sum: _Number


class _RocprofDomain(msgspec.Struct):
    domain: str
    stats: _RocprofSums


class _RocprofProcess(msgspec.Struct):
    metadata: _RocprofMetadata = msgspec.field(default_factory=_RocprofMetadata)
    agents: list[_Agent] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_KernelSymbol] = []
    summary: list[msgspec.Raw] = []
    buffer_records: dict[str, list[msgspec.Raw]] = {}


class _RocprofFile(msgspec.Struct):
    tools: list[_RocprofProcess] = msgspec.field(name="rocprofiler-sdk-tool")


def is_rocprof(head: bytes) -> bool:
    """Return whether a file that begins so is one of rocprofv3."""
    return _HEAD.match(head) is not None


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read one file, plain or gzip.

    Kernels and copies lie on the queues that they ran in: of streams, the files have a new number at every use.
    Kernels and copies of one correlation id as a call were launched by it.

    Raises:
        InputError: The file cannot be read, or is cut or damaged: JSON that ends early says nothing of its names.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    try:
        tools = msgspec.json.decode(content, type=_RocprofFile).tools
    except (ValueError, RecursionError) as error:
        message = f"{path} is cut or damaged: {' '.join(str(error).split())}."
        raise DamagedTraceError(message, "Copy it again; rocprofv3 writes it when the program ends.") from None
    part = PartBuilder(host=next((tool.metadata.node.hostname for tool in tools), ""))
    totals = StatedTotals(LossLedger(ledger.source))
    for tool in tools:
        _add_process(part, tool, ledger, totals)
    stated_totals.add(part, [totals])
    if not part.spans:
        ledger.add("files_without_events")
    return part.tables()


def _add_process(part: PartBuilder, tool: _RocprofProcess, ledger: LossLedger, totals: StatedTotals) -> None:
    records = {name: list(_decoded(tool.buffer_records.get(name, ()), ledger, _Record)) for name in _READ}
    for one in _decoded(tool.summary, ledger, _RocprofDomain):
        name, what = _SUMMED.get(one.domain, ("", ""))
        if name in tool.buffer_records:
            totals.times(what, one.stats.sum, sum(each.end_timestamp - each.start_timestamp for each in records[name]))
            totals.counts(what, one.stats.count, len(records[name]))
    for name in _UNUSED:
        ledger.add("event_unknown_kind", len(tool.buffer_records.get(name, ())), f"Records of {name}.")
    gpus = {agent.id.handle: agent for agent in tool.agents if agent.type == _GPU}
    symbols = {symbol.kernel_id: symbol for symbol in tool.kernel_symbols}
    operations = [known.operations for known in tool.strings.buffer_records]
    process = tool.metadata.pid
    _add_kernels(part, [one for one in records["kernel_dispatch"] if one.dispatch_info], symbols, gpus, ledger)
    _add_copies(part, records["memory_copy"], operations, gpus, ledger)
    said = {marker.key: marker.value for marker in tool.strings.marker_api}
    for name, kind in _CALLS.items():
        named = [(one, _named(operations, one, said if name == "marker_api" else {})) for one in records[name]]
        _add_calls(part, named, kind, process, ledger)
    for name in sorted(tool.buffer_records.keys() - {*_READ, *_UNUSED}):
        others = list(_decoded(tool.buffer_records[name], ledger, _Record))
        ledger.add("kind_unknown", len(others), f"Records of the list {printable(name)!r}.")
        named = [(one, _kernel(symbols, one) or _named(operations, one, {})) for one in others]
        _add_others(part, named, gpus, process, ledger)
    properties = [{"id": _index(one), "name": one.product_name or one.name} for one in gpus.values()]
    part.add_facts(as_json({"deviceProperties": properties} if properties else {}))


def _decoded(records: Iterable[msgspec.Raw], ledger: LossLedger, sort: type[_Sort]) -> Iterator[_Sort]:
    decoder = msgspec.json.Decoder(sort)
    for record in records:
        try:
            yield decoder.decode(record)
        except (ValueError, RecursionError):
            ledger.add("event_damaged")


def _index(agent: _Agent) -> int:
    """Return the number of a GPU among those of its host."""
    return max(agent.logical_node_type_id, 0)


def _named(operations: Sequence[Sequence[str]], record: _Record, said: Mapping[int, str]) -> str:
    """Return what a record is called: by a marker's text, else by its operation."""
    if text := said.get(record.correlation_id.internal):
        return text
    known = operations[record.kind] if 0 <= record.kind < len(operations) else []
    return known[record.operation] if 0 <= record.operation < len(known) else f"operation {record.operation}"


def _kernel(symbols: Mapping[int, _KernelSymbol], record: _Record) -> str:
    """Return the name of the kernel that a record dispatches; empty where it dispatches none."""
    if record.dispatch_info is None:
        return ""
    number = record.dispatch_info.kernel_id
    symbol = symbols.get(number, _KernelSymbol(number))
    return symbol.formatted_kernel_name or symbol.kernel_name or f"kernel {number}"


def _add_kernels(
    part: PartBuilder,
    records: Sequence[_Record],
    symbols: Mapping[int, _KernelSymbol],
    gpus: Mapping[int, _Agent],
    ledger: LossLedger,
) -> None:
    rows: list[dict[str, Any]] = []
    for record in records:
        dispatch = record.dispatch_info or _Dispatch()
        symbol = symbols.get(dispatch.kernel_id, _KernelSymbol(dispatch.kernel_id))
        name = _kernel(symbols, record)
        block, grid = dispatch.workgroup_size.listed(), dispatch.grid_size.listed()
        rows.append(
            {
                **_work(part, record, gpus, dispatch.agent_id.handle, dispatch.queue_id.handle),
                "name": name,
                "kind": "collective" if communication.transport_of_kernel(name) else "kernel",
                "grid": [-(-size // max(each, 1)) for size, each in zip(grid, block, strict=True)],
                "block": block,
                "registers": symbol.arch_vgpr_count or None,
                "shared_memory": dispatch.group_segment_size,
            }
        )
    _add_work(part, rows, ledger, grid=pl.List(pl.Int64), block=pl.List(pl.Int64), registers=pl.Int64,
              shared_memory=pl.Int64)  # fmt: skip


def _add_copies(
    part: PartBuilder,
    records: Sequence[_Record],
    operations: Sequence[Sequence[str]],
    gpus: Mapping[int, _Agent],
    ledger: LossLedger,
) -> None:
    rows = []
    for record in records:
        said = _named(operations, record, {}).removeprefix("MEMORY_COPY_")
        agent = next((one.handle for one in (record.dst_agent_id, record.src_agent_id) if one.handle in gpus), 0)
        work = _work(part, record, gpus, agent, None)
        rows.append({**work, "name": _COPIES.get(said, said), "kind": "memcpy", "bytes": record.bytes})
    _add_work(part, rows, ledger, bytes=pl.Int64)


def _add_others(
    part: PartBuilder, named: Sequence[tuple[_Record, str]], gpus: Mapping[int, _Agent], process: int | None,
    ledger: LossLedger,
) -> None:  # fmt: skip
    """Add records of a list that is not known: what names a GPU is its work, the others lie on their threads."""
    works, calls = [], []
    for record, name in named:
        asked = record.dispatch_info or _Dispatch(record.agent_id, record.queue_id)
        agents = (asked.agent_id.handle, record.dst_agent_id.handle, record.src_agent_id.handle)
        if agent := next((one for one in agents if one in gpus), None):
            work = _work(part, record, gpus, agent, asked.queue_id.handle or None)
            works.append({**work, "name": name, "kind": "other"})
        else:
            calls.append((record, name))
    _add_work(part, works, ledger)
    _add_calls(part, calls, "other", process, ledger)


def _work(
    part: PartBuilder, record: _Record, gpus: Mapping[int, _Agent], agent: int, queue: int | None
) -> dict[str, Any]:
    """Return what kernels and copies have alike; a copy has no queue, its track is the device's copies."""
    index = _index(gpus[agent]) if agent in gpus else 0
    stream = queue if queue is not None and 0 <= queue < 1 << 31 else None
    name = f"stream {stream}" if stream is not None else "copies"
    return {
        "track": part.tracks.number(TrackRow("stream", f"cuda:{index}", name, stream=stream)),
        "device": index,
        "stream": stream,
        "ts": record.start_timestamp,
        "dur": record.end_timestamp - record.start_timestamp,
        "correlation": record.correlation_id.internal or None,
    }


_SPAN: dict[str, Any] = {
    "track": pl.Int32, "ts": pl.Int64, "dur": pl.Int64, "name": pl.Categorical(), "kind": pl.String,
    "correlation": pl.Int64,
}  # fmt: skip


def _add_work(part: PartBuilder, rows: Sequence[dict[str, Any]], ledger: LossLedger, **details: Any) -> None:  # noqa: ANN401 - types of Polars
    kernel = {"device": pl.Int32, "stream": pl.Int64, **details}
    frame = sound_spans(pl.DataFrame(rows, schema={**_SPAN, **kernel}, orient="row"), ledger)
    first = part.add_spans(frame.select(list(_SPAN)))
    numbers = pl.Series("span", range(first, first + frame.height), pl.Int64)
    part.add("kernels", frame.select(list(kernel)).with_columns(numbers))


def _add_calls(
    part: PartBuilder, named: Sequence[tuple[_Record, str]], kind: str, process: int | None, ledger: LossLedger
) -> None:
    rows = [
        {
            "track": part.tracks.number(
                TrackRow("thread", "cpu", f"thread {record.thread_id}", process, record.thread_id)
            ),
            "ts": record.start_timestamp,
            "dur": record.end_timestamp - record.start_timestamp,
            "name": name,
            "kind": kind,
            "correlation": (record.correlation_id.internal or None) if kind != "annotation" else None,
        }
        for record, name in named
    ]
    part.add_spans(sound_spans(pl.DataFrame(rows, schema=_SPAN, orient="row"), ledger))
