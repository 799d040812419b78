"""Every table and column of a trace: the contract between readers and everything after them.

Times are integers in nanoseconds since the Unix epoch, durations integers in nanoseconds. ``docs/tables.md`` is
generated from this module (``python -m stepscope.trace.schema``); the frames in :mod:`stepscope.trace.tables` are
validated against it. The module needs the standard library only, so that the training process can import it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

#: What a span is. ``category`` columns hold any text; ``kind`` and ``phase`` only these.
KINDS: dict[str, str] = {
    "step": "a training step as the source file marked it (the table `steps` holds the resolved steps)",
    "phase": "a part of a step that somebody named (forward, backward, …)",
    "operator": "a framework operator on a host thread",
    "kernel": "a computing kernel on a device stream",
    "memcpy": "a copy to, from or within a device, on a device stream",
    "memset": "a fill of device memory, on a device stream",
    "runtime": "a call of the device's runtime API on a host thread (cudaLaunchKernel …)",
    "driver": "a call of the device's driver API on a host thread (cuLaunchKernel …)",
    "collective": "communication between ranks: on a stream the kernel, on a host thread the call",
    "python": "a Python function or module call",
    "annotation": "a range the user named, on a host thread or projected onto a stream",
    "data": "the training thread waits for its next batch",
    "sync": "a wait: for a stream, an event or a device",
    "garbage": "a pause of Python's garbage collector",
    "overhead": "the profiler's own work, or the device buffers' flush",
    "compile": "a program is traced, lowered or compiled, on a host thread",
}

#: Part of the training step that a span belongs to.
PHASES: tuple[str, ...] = ("forward", "backward", "optimizer", "data", "communication", "other")

#: Sort of track.
TRACK_KINDS: tuple[str, ...] = ("thread", "stream", "annotation", "counter", "other")

#: What an arrow means.
FLOW_KINDS: tuple[str, ...] = ("launch", "forward_backward", "send_receive", "other")

#: How bad a loss is: nothing missing, something missing, something wrong.
SEVERITIES: tuple[str, ...] = ("info", "data_loss", "error")

#: Where a step came from.
STEP_SOURCES: tuple[str, ...] = ("declared", "inferred")

#: Key of `metadata`: the fraction of the operators that was recorded, where it is less than 1. Steps, kernels and
#: everything that PyTorch does not mark itself are all there.
SAMPLE = "operator_sample"
#: Counter in the recordings that are a sample: the fraction of the operators that is recorded from its time on.
SAMPLED = "operators recorded"

ENUMS: dict[str, tuple[str, ...]] = {
    "kind": tuple(KINDS),
    "phase": PHASES,
    "track_kind": TRACK_KINDS,
    "flow_kind": FLOW_KINDS,
    "severity": SEVERITIES,
    "step_source": STEP_SOURCES,
}


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Name in frames and Parquet files.
        dtype: ``int64``, ``int32``, ``float64``, ``bool``, ``text``, ``category`` (dictionary-encoded text),
            ``enum:<name>`` (one of :data:`ENUMS`), ``list[int64]`` or ``list[frame]`` (file, line, function).
        unit: Unit of the value; empty for names, identifiers and counts.
        nullable: Whether a row may lack the value.
        meaning: One sentence, with the meaning of null where the column is nullable.
    """

    name: str
    dtype: str
    unit: str
    nullable: bool
    meaning: str


@dataclass(frozen=True)
class Table:
    """One table: what a row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """Return the column called ``name``; ``KeyError`` if none is."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def _must(name: str, dtype: str, meaning: str, unit: str = "") -> Column:
    return Column(name, dtype, unit, nullable=False, meaning=meaning)


def _may(name: str, dtype: str, meaning: str, unit: str = "") -> Column:
    return Column(name, dtype, unit, nullable=True, meaning=meaning)


def _table(name: str, row: str, *columns: Column) -> Table:
    return Table(name, row, columns)


_ALL = (
    _table(
        "spans",
        "an interval on a track",
        _must("id", "int64", "Identifier, unique within the rank; rows are ordered by it."),
        _must("track", "int32", "`tracks.id` of the track it lies on."),
        _must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        _must("dur", "int64", "Duration, never negative.", "ns"),
        _must("name", "category", "Name as the source gave it."),
        _must("kind", "enum:kind", "What it is, see the list below."),
        _may(
            "parent", "int64", "`spans.id` of the innermost span of the same track that contains it; null at the top."
        ),
        _must("depth", "int32", "Number of spans of the same track that contain it."),
        _may("step", "int32", "`steps.number` of the step its start falls into; null outside every step."),
        _may("correlation", "int64", "Number shared by a runtime call and the device work it launched."),
        _may("sequence", "int64", "Autograd sequence number, shared by a forward operator and its backward."),
        _may("phase", "enum:phase", "Part of the step; null if unknown."),
    ),
    _table(
        "tracks",
        "a host thread, a device stream, or a lane of marks or counters",
        _must("id", "int32", "Identifier, unique within the rank."),
        _must(
            "kind",
            "enum:track_kind",
            "Host thread, device stream, lane of annotations on a stream, counter lane, or other.",
        ),
        _must("rank", "int32", "Rank of the process in its job; 0 for a single process."),
        _must("host", "category", "Host name; empty where the source does not say."),
        _must("device", "category", "`cpu`, or device and index: `cuda:0`, `mtia:1`."),
        _may("process", "int64", "Process id; null for device tracks whose process is unknown."),
        _may("thread", "int64", "Native thread id of a host thread; null otherwise."),
        _may("stream", "int64", "Stream number of a device track; null otherwise."),
        _must("name", "text", "Name to show."),
        _must("order", "int32", "Place among the tracks when shown: host threads first, then streams."),
    ),
    _table(
        "kernels",
        "device details of a kernel, copy or fill",
        _must("span", "int64", "`spans.id` of the device work."),
        _must("device", "int32", "Device index."),
        _may("context", "int64", "Device context."),
        _may("stream", "int64", "Stream number."),
        _may("grid", "list[int64]", "Grid size x, y, z.", "blocks"),
        _may("block", "list[int64]", "Block size x, y, z.", "threads"),
        _may("registers", "int64", "Registers per thread."),
        _may("shared_memory", "int64", "Shared memory per block, static and dynamic together.", "bytes"),
        _may("occupancy", "float64", "Estimated achieved occupancy, as the source gives it.", "%"),
        _may("blocks_per_sm", "float64", "Blocks per multiprocessor, as the source gives it."),
        _may("warps_per_sm", "float64", "Warps per multiprocessor, as the source gives it."),
        _may("bytes", "int64", "Bytes copied or filled; null for computing kernels.", "bytes"),
        _may("bandwidth", "float64", "Bandwidth of the copy, as the source gives it (10^9 bytes).", "GB/s"),
        _may("graph", "int64", "Identifier of the CUDA graph that launched it; null for stream launches."),
        _may("graph_node", "int64", "Node of that graph."),
        _may("priority", "int64", "Priority of the stream."),
        _may("launch", "int64", "`spans.id` of the runtime or driver call that launched it."),
        _may("operator", "int64", "`spans.id` of the innermost operator around that call."),
    ),
    _table(
        "operators",
        "framework details of an operator span",
        _must("span", "int64", "`spans.id` of the operator."),
        _may("shapes", "category", "Shapes of the inputs, JSON: `[[8,3,32,32],[]]`."),
        _may("dtypes", "category", "Types of the inputs, JSON list of strings."),
        _may("strides", "category", "Strides of the inputs, JSON."),
        _may("concrete", "category", "Values of scalar inputs, JSON list of strings."),
        _may("module", "category", "Module instance that ran it, outermost first, separated by `/`."),
        _may(
            "scope",
            "int64",
            "Record-function scope (0 function, 1 backward function, 6 user, as PyTorch numbers them).",
        ),
        _may("flops", "int64", "Floating-point operations of one call, as the source counts them.", "FLOP"),
        _may("stack", "int64", "`stacks.id` of the Python stack that called it."),
        _may("external", "int64", "Identifier the source gave the operator (Kineto: External id)."),
        _may("forward_thread", "int64", "Thread of the forward operator, on backward operators."),
        _may("instruction", "int64", "`instructions.id` of the compiler's instruction that it ran."),
    ),
    _table(
        "instructions",
        "an instruction of a compiled program",
        _must("id", "int64", "Identifier, unique within the rank."),
        _must("program", "category", "Name of the program: `jit_step`."),
        _must("program_id", "int64", "Number of the program in its process."),
        _must("name", "category", "Name, unique within the program: `add_tanh_fusion.2`."),
        _must("opcode", "category", "What it does: `dot`, `fusion`, `while`, …"),
        _must("computation", "category", "Computation of the program that it stands in."),
        _may(
            "parent",
            "int64",
            "`instructions.id` of the fusion, loop, call or condition that runs its computation; null at the top.",
        ),
        _may(
            "scope",
            "category",
            "Place in the source program, outermost first: `jit(step)/transpose(jvp(loss))/layer2/dot_general`.",
        ),
        _may("phase", "enum:phase", "Part of the step, taken from the scope; null if unknown."),
        _may("shape", "text", "Type and shape of the result: `f32[64,128]`; several in parentheses."),
        _may("operands", "text", "Types and shapes of the operands, separated by commas."),
        _may(
            "flops",
            "int64",
            "Floating-point operations of one execution, what it contains included; null if unknown.",
            "FLOP",
        ),
        _may("transcendentals", "int64", "Values of exp, tanh, … of one execution; not among the operations."),
        _may("bytes", "int64", "Bytes that one execution reads and writes; null if unknown.", "bytes"),
        _may("source", "text", "Line of the program that it comes from: `train.py:12`."),
    ),
    _table(
        "tasks",
        "what an NPU's runtime says of a task on one of its streams",
        _must("span", "int64", "`spans.id` of the task."),
        _must("type", "category", "Sort of task as the device names it: AI_CORE, PCIE_DMA_SQE, EVENT_WAIT_SQE, …"),
        _may("stream", "int64", "Stream that it ran on, where its track is not that stream."),
        _may("task", "int64", "Number of the task on its stream."),
        _may("context", "int64", "Number of the part of a task of several parts."),
        _may("batch", "int64", "How often the numbers of tasks had begun again."),
        _may("model", "int64", "Model that it belongs to; 4294967295 is none."),
        _may("operation", "category", "Type of the operator: Conv2D; null from here on for what is not a kernel."),
        _may("core", "category", "Sort of core: AI_CORE, AI_VECTOR_CORE, MIX_AIC, MIX_AIV, AI_CPU, HCCL, …"),
        _may("state", "category", "Whether its shapes were known when it was compiled: static, dynamic."),
        _may("blocks", "int64", "Cores that it was cut for."),
        _may("mix_blocks", "int64", "Those of its second kind of core."),
        _may("reduced_precision", "category", "Whether it may compute with the 19 bits of HF32: YES, NO."),
        _may("input_shapes", "category", "Shapes of the inputs, separated by `;`: `32,3,224,224;64`."),
        _may("input_dtypes", "category", "Their types: `FLOAT;FLOAT`."),
        _may("input_formats", "category", "Their layouts in memory: `NC1HWC0;NCHW`."),
        _may("output_shapes", "category", "Shapes of the outputs."),
        _may("output_dtypes", "category", "Their types."),
        _may("output_formats", "category", "Their layouts in memory."),
        _may("attributes", "category", "Attributes of the operator."),
        _may("wait", "int64", "From the end of the task before it to its start, as the source counts it.", "ns"),
        _may("step", "int32", "Step that the source counts it to."),
    ),
    _table(
        "kernel_counters",
        "one hardware counter of one kernel",
        _must("span", "int64", "`spans.id` of the kernel, or of the operator where the source measures ranges of it."),
        _must("name", "category", "Counter as its source names it."),
        _must("value", "float64", "Value.", "see unit"),
        _must("unit", "category", "Unit; empty for plain counts."),
    ),
    _table(
        "collectives",
        "communication details of a collective span",
        _must("span", "int64", "`spans.id` of the collective."),
        _must(
            "operation",
            "category",
            "allreduce, allgather, reduce_scatter, broadcast, send, recv, barrier, …; lower case.",
        ),
        _may("group", "category", "Name of the process group."),
        _may("group_ranks", "category", "Ranks of the group, JSON list."),
        _may("group_size", "int64", "Number of ranks in the group."),
        _may("dtype", "category", "Type of the elements."),
        _may("bytes_in", "int64", "Bytes this rank puts in.", "bytes"),
        _may("bytes_out", "int64", "Bytes this rank receives.", "bytes"),
        _may("source", "int64", "Sending rank of a point-to-point operation."),
        _may("destination", "int64", "Receiving rank of a point-to-point operation."),
        _may("algorithm", "category", "Algorithm, where the source says."),
        _may("transport", "category", "Transport or backend: nccl, gloo, rccl, HCCS, RDMA, …"),
        _may("transit", "int64", "Time spent moving data.", "ns"),
        _may("wait", "int64", "Time spent waiting for other ranks.", "ns"),
        _may("synchronisation", "int64", "The part of the wait before the first data moved.", "ns"),
        _may("sequence", "int64", "Number of the collective within its group, equal on all ranks."),
    ),
    _table(
        "transfers",
        "data that a collective, or a part of it, moved over one transport",
        _may("span", "int64", "`spans.id` of the collective or of the part; null for the sum over a step."),
        _may("step", "int32", "Step that the source counts it to."),
        _must("transport", "category", "RDMA, HCCS, PCIE, SDMA, SIO, LOCAL, …"),
        _may("link", "category", "Sort of wire: ON_CHIP, HCCS, PCIE, …"),
        _may("source", "int64", "Rank that it came from."),
        _may("destination", "int64", "Rank that it went to."),
        _may("packet", "int64", "Size of a packet; null for packets of all sizes.", "bytes"),
        _may("count", "int64", "Number of packets."),
        _may("bytes", "int64", "Bytes moved.", "bytes"),
        _may("transit", "int64", "Time spent moving them.", "ns"),
        _may("bandwidth", "float64", "Bandwidth as the source gives it (10^9 bytes).", "GB/s"),
        _may("large", "float64", "Share of packets that are large, from 0 to 1, as the source gives it."),
    ),
    _table(
        "links",
        "data that collectives of one sort moved from one rank to another",
        _may("step", "int32", "Step that the source counts them to."),
        _must("point_to_point", "bool", "Whether two ranks communicate, rather than a group."),
        _must("operation", "category", "Sort of operation as the source names it: allreduce."),
        _must(
            "place",
            "category",
            "Which of the operations, ordered by falling bandwidth: top1, middle, bottom3, bottom2, bottom1; or total.",
        ),
        _must("group", "category", "Name of the process group."),
        _may("source", "int64", "Rank that it came from."),
        _may("destination", "int64", "Rank that it went to."),
        _may("transport", "category", "LOCAL, HCCS, PCIE, RDMA, SIO."),
        _may("bytes", "int64", "Bytes moved.", "bytes"),
        _may("transit", "int64", "Time spent moving them.", "ns"),
        _may("bandwidth", "float64", "Bandwidth as the source gives it (10^9 bytes).", "GB/s"),
        _may("name", "category", "Name of the operation; null for a total."),
    ),
    _table(
        "counters",
        "one sample of one counter",
        _must("ts", "int64", "Time of the sample, since the Unix epoch.", "ns"),
        _must("track", "int32", "`tracks.id` of the counter's lane."),
        _must("name", "category", "Name of the counter."),
        _must("value", "float64", "Value.", "see unit"),
        _must("unit", "category", "Unit: %, bytes, bytes/s, …; empty for plain counts."),
    ),
    _table(
        "allocations",
        "memory taken or freed",
        _must("ts", "int64", "Time, since the Unix epoch.", "ns"),
        _must("device", "category", "`cpu`, or device and index: `cuda:0`."),
        _may("address", "int64", "Address of the block; the bits of an unsigned number."),
        _must("bytes", "int64", "Bytes taken; negative when freed.", "bytes"),
        _may("allocated", "int64", "Allocated on the device after this event.", "bytes"),
        _may("reserved", "int64", "Reserved by the framework's allocator after this event.", "bytes"),
        _may("active", "int64", "In use on the device after this event, where the source tells it apart.", "bytes"),
        _may("span", "int64", "`spans.id` of the innermost operator during which it happened."),
        _may("thread", "int64", "Native thread id on which it happened."),
        _may(
            "block", "int64", "Number that the rows of one block share; null where its address is all that tells them."
        ),
        _may("name", "category", "Operator as the source names it, where it does."),
        _may("component", "category", "Part of the software that took it; null for the framework."),
        _may("stream", "int64", "Stream that the block belongs to, or its address."),
        _may("unused", "int64", "When the device last used the freed block, where the source tells it apart.", "ns"),
    ),
    _table(
        "static_memory",
        "memory that a compiled graph sets aside for an operator",
        _must("name", "category", "Name of the operator."),
        _must("device", "category", "`cpu`, or device and index: `npu:0`."),
        _may("model", "category", "Name of the model."),
        _may("graph", "int64", "Number of the graph."),
        _may("first_node", "int64", "Place of the operator from which on it is held."),
        _may("last_node", "int64", "Place of the last one that needs it; null: to the end."),
        _must("bytes", "int64", "Size.", "bytes"),
    ),
    _table(
        "live_memory",
        "memory alive when the recording ended, taken by one call stack",
        _must("kind", "category", "Sort of memory as the source names it: `buffer`, `executable`; else `memory`."),
        _may("device", "category", "`cpu`, or device and index: `cuda:0`; null where it is none's."),
        _may("count", "int64", "Number of blocks."),
        _must("bytes", "int64", "Their size together.", "bytes"),
        _may("stack", "int64", "`stacks.id` of the call stack that took them."),
    ),
    _table(
        "stacks",
        "an interned call stack",
        _must("id", "int64", "Identifier, unique within the rank."),
        _must("frames", "list[frame]", "Frames, innermost first: file, line, function."),
    ),
    _table(
        "steps",
        "a training step",
        _must("number", "int32", "Number of the step in the training, counted from 0 unless the source numbers it."),
        _must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        _must("dur", "int64", "Duration.", "ns"),
        _may("epoch", "int32", "Epoch; null where the source does not say."),
        _must("source", "enum:step_source", "Declared by the program, or inferred."),
    ),
    _table(
        "flows",
        "an arrow between spans",
        _must("from", "int64", "`spans.id` where it begins."),
        _must("to", "int64", "`spans.id` where it ends."),
        _must("kind", "enum:flow_kind", "Launch, forward to backward, send to receive, or other."),
    ),
    _table(
        "arguments",
        "one argument of a range, as the user or the source gave it",
        _must("span", "int64", "`spans.id` of the range."),
        _must("key", "category", "Name of the argument."),
        _must("value", "text", "Value as JSON."),
    ),
    _table(
        "pipeline",
        "an operation of the data pipeline that makes the batches",
        _must("id", "int64", "Number of the operation, as the source gives it; 0 is the one that gives the batches."),
        _must("name", "category", "Name as the source gave it: `BatchOp`."),
        _may("workers", "int64", "Threads or processes that work on it."),
        _may("capacity", "int64", "Most elements that its output queue holds; null where it has no queue."),
        _may("interval", "int64", "Time between two samples of its counters.", "ns"),
        _must("children", "list[int64]", "`pipeline.id` of the operations it takes from, in order."),
        _must("track", "int32", "`tracks.id` of the lane with its counters: output queue, cpu user, cpu system."),
    ),
    _table(
        "metadata",
        "one fact about the run",
        _must("key", "text", "Name of the fact; user metadata as given, facts of the source under their own names."),
        _must("value", "text", "Value as JSON."),
    ),
    _table(
        "losses",
        "something dropped, cut, clipped or repaired",
        _must(
            "what", "category", "Name of the loss, one of the catalogue in `stepscope.trace.losses` or of a collector."
        ),
        _must("count", "int64", "How often."),
        _must(
            "severity",
            "enum:severity",
            "`info`: nothing is missing; `data_loss`: something is; `error`: numbers may be wrong.",
        ),
        _must("source", "text", "File or collector."),
        _must("advice", "text", "What the user can do about it."),
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


def _table_markdown(table: Table) -> str:
    lines = [f"## {table.name}", "", f"One row is {table.row}.", ""]
    lines += ["| column | type | unit | may be null | meaning |", "|---|---|---|---|---|"]
    for column in table.columns:
        null = "yes" if column.nullable else "no"
        lines.append(f"| `{column.name}` | {column.dtype} | {column.unit} | {null} | {column.meaning} |")
    return "\n".join(lines)


def markdown() -> str:
    """Return the reference page ``docs/tables.md``."""
    head = (
        "# Tables\n\nGenerated from `stepscope.trace.schema` by `make docs`; do not edit.\n\n"
        "Times are integers in nanoseconds since the Unix epoch. `category` is dictionary-encoded text. The tables of\n"
        "a rank lie as Parquet (zstd) under `tables/` of its directory and can be deleted: they are made again from\n"
        "`capture/`."
    )
    kinds = "\n".join(["## Kinds of spans", "", *(f"* `{name}`: {meaning}" for name, meaning in KINDS.items())])
    return "\n\n".join([head, *(_table_markdown(table) for table in TABLES.values()), kinds]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
