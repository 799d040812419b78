"""Every table and column of a trace: the contract between readers and everything after them.

Times are integers in nanoseconds since the Unix epoch, durations integers in nanoseconds. ``docs/tables.md`` is
generated from this module (``python -m stepscope.trace.schema``); the frames in :mod:`stepscope.trace.tables` are
validated against it. The module needs the standard library only, so that the training process can import it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache

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
    "other": "work of a kind that stepscope does not know; on a device stream it counts as computing",
}

#: Part of the training step that a span belongs to.
PHASES: tuple[str, ...] = ("forward", "backward", "optimizer", "data", "communication", "other")

#: Sort of track.
TRACK_KINDS: tuple[str, ...] = ("thread", "stream", "annotation", "counter", "other")

#: What an arrow means.
FLOW_KINDS: tuple[str, ...] = ("launch", "forward_backward", "send_receive", "other", "wait")

#: How bad a loss is: nothing missing, something missing, something wrong.
SEVERITIES: tuple[str, ...] = ("info", "data_loss", "error")

#: Facts in the table `metadata` that the assembly uses: how the system clock was set while recording; and between which
#: times, in ns, a source of work recorded not everything: a list of pairs, whose end is null where that is unknown.
CLOCK_SET, GAPS = "stepscope.clock_set", "stepscope.gaps"
#: Fact in the journal: when a framework's recording ended before its window.
ENDED_EARLY = "stepscope.ended_early"
#: Fact in the journal: when each step up to `until` ended, because another optimizer ends them than it seemed at first.
#: In the table `metadata` of the times of all steps: `until`, in ns.
STEPS_RECOUNT = "stepscope.steps_recount"
#: Facts: the functions that evaluate what the program trains, as a JSON list of pairs of file and name; and the number
#: of the thread that has ended most steps, if that is not the main thread.
EVALUATIONS, STEPPING = "evaluations", "stepping_thread"

#: What a thread does at the moment of a sample, in the order of ``enum ss_state`` in ``native/sampler.h``.
SAMPLE_STATES: dict[str, str] = {
    "python": "on a core, and holds the GIL: Python code, or C code that keeps the GIL",
    "native": "on a core without the GIL: an operator, numpy, compression, …",
    "collecting": "in Python's garbage collector",
    "gil": "waits for the GIL, which another thread holds",
    "core": "could run, but another thread has the core",
    "lock": "waits for a lock, a queue or a condition",
    "sleep": "sleeps",
    "io": "reads, writes, or waits for a file, a socket or a pipe",
    "child": "waits for another process to end",
    "waiting": "waits in the kernel for something else",
}

#: Where a step came from.
STEP_SOURCES: tuple[str, ...] = ("declared", "inferred")

#: Key of `metadata`: the fraction of the operators that was recorded, where it is less than 1. Steps, kernels and
#: everything that PyTorch does not mark itself are all there.
SAMPLE = "operator_sample"

#: Key of `metadata`: of each number of classes that a loss had, its targets that were looked at and those it ignores.
TARGETS = "torch.targets"
#: Key of `metadata`: which totals of the source were compared with the tables; what differs is a row of `losses`.
TOTALS = "totals_compared"
#: Beginning of keys of `metadata`: the rows of the result of that name as the source states them, under the result's
#: columns, as JSON. A result that the tables cannot give is made of them.
STATED = "stated "
#: Key of `metadata`: number and ns of each step as its device works for it, as JSON, where the marked ones differ.
STEPS_OF_DEVICE = "steps_of_device"
#: Key of `metadata`: parts of a step that the source did not record, as JSON; behind a cut, that is any work.
NOT_RECORDED, ANY_WORK = "not_recorded", ["computing", "communication", "copy"]
#: Keys of `metadata`: how Python stacks were sampled, and the directories whose code is not the program's own, as JSON.
STACK_SAMPLES, LIBRARIES = "stack_samples", "library_roots"
#: Keys of `metadata`, JSON as in docs/facts.md: how fast the machine is; what its allocator was asked for and lacked.
SPEEDS, OUT_OF_MEMORY = "machine.speeds", "memory.exhausted"
#: Counter in the recordings that are a sample: the fraction of the operators that is recorded from its time on.
SAMPLED = "operators recorded"

ENUMS: dict[str, tuple[str, ...]] = {
    "kind": tuple(KINDS),
    "phase": PHASES,
    "track_kind": TRACK_KINDS,
    "flow_kind": FLOW_KINDS,
    "severity": SEVERITIES,
    "step_source": STEP_SOURCES,
    "sample_state": tuple(SAMPLE_STATES),
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


def must(name: str, dtype: str, meaning: str, unit: str = "") -> Column:
    """Return a column that every row has."""
    return Column(name, dtype, unit, nullable=False, meaning=meaning)


def may(name: str, dtype: str, meaning: str, unit: str = "") -> Column:
    """Return a column that may be null."""
    return Column(name, dtype, unit, nullable=True, meaning=meaning)


def _table(name: str, row: str, *columns: Column) -> Table:
    return Table(name, row, columns)


_ALL = (
    _table(
        "spans",
        "an interval on a track",
        must("id", "int64", "Identifier, unique within the rank; rows are ordered by it."),
        must("track", "int32", "`tracks.id` of the track it lies on."),
        must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        must("dur", "int64", "Duration, never negative.", "ns"),
        must("name", "category", "Name as the source gave it."),
        must("kind", "enum:kind", "What it is, see the list below."),
        may("parent", "int64", "`spans.id` of the innermost span of the same track that contains it; null at the top."),
        must("depth", "int32", "Number of spans of the same track that contain it."),
        may("step", "int32", "`steps.number` of the step its start falls into; null outside every step."),
        may("correlation", "int64", "Number shared by a runtime call and the device work it launched."),
        may("sequence", "int64", "Autograd sequence number, shared by a forward operator and its backward."),
        may("phase", "enum:phase", "Part of the step; null if unknown."),
    ),
    _table(
        "tracks",
        "a host thread, a device stream, or a lane of marks or counters",
        must("id", "int32", "Identifier, unique within the rank."),
        must("kind", "enum:track_kind", "Host thread, device stream, annotations on a stream, counters, or other."),
        must("rank", "int32", "Rank of the process in its job; 0 for a single process."),
        must("host", "category", "Host name; empty where the source does not say."),
        must("device", "category", "`cpu`, or device and index: `cuda:0`, `mtia:1`."),
        may("process", "int64", "Process id; null for device tracks whose process is unknown."),
        may("thread", "int64", "Native thread id of a host thread; null otherwise."),
        may("stream", "int64", "Stream number of a device track; null otherwise."),
        must("name", "text", "Name to show."),
        must("order", "int32", "Place among the tracks when shown: host threads first, then streams."),
    ),
    _table(
        "kernels",
        "device details of a kernel, copy or fill",
        must("span", "int64", "`spans.id` of the device work."),
        may("device", "int32", "Device index; null where the source does not say it."),
        may("context", "int64", "Device context."),
        may("stream", "int64", "Stream number."),
        may("grid", "list[int64]", "Grid size x, y, z.", "blocks"),
        may("block", "list[int64]", "Block size x, y, z.", "threads"),
        may("registers", "int64", "Registers per thread."),
        may("shared_memory", "int64", "Shared memory per block, static and dynamic together.", "bytes"),
        may("occupancy", "float64", "Estimated achieved occupancy, as the source gives it.", "%"),
        may("blocks_per_sm", "float64", "Blocks per multiprocessor, as the source gives it."),
        may("warps_per_sm", "float64", "Warps per multiprocessor, as the source gives it."),
        may("bytes", "int64", "Bytes copied or filled; null for computing kernels.", "bytes"),
        may("bandwidth", "float64", "Bandwidth of the copy, as the source gives it (10^9 bytes).", "GB/s"),
        may(
            "graph",
            "int64",
            "Identifier of the graph that launched it, as the source gives it, else from 1; null for stream launches.",
        ),
        may("graph_node", "int64", "Node of that graph."),
        may("priority", "int64", "Priority of the stream."),
        may("launch", "int64", "`spans.id` of the runtime or driver call that launched it."),
        may(
            "operator",
            "int64",
            "`spans.id` of the innermost operator around that call; of a graph around its capture, else the replay.",
        ),
    ),
    _table(
        "operators",
        "framework details of an operator span",
        must("span", "int64", "`spans.id` of the operator."),
        may("shapes", "category", "Shapes of the inputs, JSON: `[[8,3,32,32],[]]`."),
        may("dtypes", "category", "Types of the inputs, JSON list of strings."),
        may("strides", "category", "Strides of the inputs, JSON."),
        may("concrete", "category", "Values of scalar inputs, JSON list of strings."),
        may("module", "category", "Module instance that ran it, outermost first, separated by `/`."),
        may("scope", "int64", "Record-function scope of PyTorch: 0 function, 1 backward function, 6 user."),
        may("flops", "int64", "Floating-point operations of one call, as the source counts them.", "FLOP"),
        may("stack", "int64", "`stacks.id` of the Python stack that called it."),
        may("external", "int64", "Identifier the source gave the operator (Kineto: External id)."),
        may("forward_thread", "int64", "Thread of the forward operator, on backward operators."),
        may("instruction", "int64", "`instructions.id` of the compiler's instruction that it ran."),
    ),
    _table(
        "instructions",
        "an instruction of a compiled program",
        must("id", "int64", "Identifier, unique within the rank."),
        must("program", "category", "Name of the program: `jit_step`."),
        must("program_id", "int64", "Number of the program in its process."),
        must("name", "category", "Name, unique within the program: `add_tanh_fusion.2`."),
        must("opcode", "category", "What it does: `dot`, `fusion`, `while`, …"),
        must("computation", "category", "Computation of the program that it stands in."),
        may(
            "parent",
            "int64",
            "`instructions.id` of the fusion, loop, call or condition that runs its computation; null at the top.",
        ),
        may(
            "scope",
            "category",
            "Place in the source program, outermost first: `jit(step)/transpose(jvp(loss))/layer2/dot_general`.",
        ),
        may("phase", "enum:phase", "Part of the step, taken from the scope; null if unknown."),
        may("shape", "text", "Type and shape of the result: `f32[64,128]`; several in parentheses."),
        may("operands", "text", "Types and shapes of the operands, separated by commas."),
        may("takes", "text", "Names of the instructions that made the operands; of a fusion's parameter, what it is."),
        may(
            "flops",
            "int64",
            "Floating-point operations of one execution, what it contains included; null if unknown.",
            "FLOP",
        ),
        may("transcendentals", "int64", "Values of exp, tanh, … of one execution; not among the operations."),
        may("bytes", "int64", "Bytes that one execution reads and writes; null if unknown.", "bytes"),
        may("source", "text", "Line of the program that it comes from: `train.py:12`."),
    ),
    _table(
        "tasks",
        "what an NPU's runtime says of a task on one of its streams",
        must("span", "int64", "`spans.id` of the task."),
        must("type", "category", "Sort of task as the device names it: AI_CORE, PCIE_DMA_SQE, EVENT_WAIT_SQE, …"),
        may("stream", "int64", "Stream that it ran on, where its track is not that stream."),
        may("task", "int64", "Number of the task on its stream."),
        may("context", "int64", "Number of the part of a task of several parts."),
        may("batch", "int64", "How often the numbers of tasks had begun again."),
        may("model", "int64", "Model that it belongs to; 4294967295 is none."),
        may("operation", "category", "Type of the operator: Conv2D; null from here on for what is not a kernel."),
        may("core", "category", "Sort of core: AI_CORE, AI_VECTOR_CORE, MIX_AIC, MIX_AIV, AI_CPU, HCCL, …"),
        may("state", "category", "Whether its shapes were known when it was compiled: static, dynamic."),
        may("blocks", "int64", "Cores that it was cut for."),
        may("mix_blocks", "int64", "Those of its second kind of core."),
        may("reduced_precision", "category", "Whether it may compute with the 19 bits of HF32: YES, NO."),
        may("input_shapes", "category", "Shapes of the inputs, separated by `;`: `32,3,224,224;64`."),
        may("input_dtypes", "category", "Their types: `FLOAT;FLOAT`."),
        may("input_formats", "category", "Their layouts in memory: `NC1HWC0;NCHW`."),
        may("output_shapes", "category", "Shapes of the outputs."),
        may("output_dtypes", "category", "Their types."),
        may("output_formats", "category", "Their layouts in memory."),
        may("attributes", "category", "Attributes of the operator."),
        may("wait", "int64", "From the end of the task before it to its start, as the source counts it.", "ns"),
        may("step", "int32", "Step that the source counts it to."),
    ),
    _table(
        "kernel_counters",
        "one hardware counter of one kernel",
        must("span", "int64", "`spans.id` of the kernel, or of the operator where the source measures ranges of it."),
        must("name", "category", "Counter as its source names it."),
        must("value", "float64", "Value.", "see unit"),
        must("unit", "category", "Unit; empty for plain counts."),
    ),
    _table(
        "collectives",
        "a collective, or communication between two ranks",
        must(
            "span",
            "int64",
            "`spans.id` of its kernel; without one, of its outermost call, or of what lasts from there to its end.",
        ),
        must("operation", "category", "allreduce, allgather, reduce_scatter, broadcast, send, barrier, …; lower case."),
        may("group", "category", "Name of the process group."),
        may("group_ranks", "category", "All ranks of the group, JSON list."),
        may("group_size", "int64", "Number of ranks in the group."),
        may("dtype", "category", "Type of the elements."),
        may("bytes_in", "int64", "Bytes this rank puts in.", "bytes"),
        may("bytes_out", "int64", "Bytes this rank receives.", "bytes"),
        may("source", "int64", "Sending rank of a point-to-point operation."),
        may("destination", "int64", "Receiving rank of a point-to-point operation."),
        may("algorithm", "category", "Algorithm, where the source says."),
        may("transport", "category", "Transport or backend: nccl, gloo, rccl, HCCS, RDMA, …"),
        may("transit", "int64", "Time spent moving data.", "ns"),
        may("wait", "int64", "Time spent waiting for other ranks.", "ns"),
        may("synchronisation", "int64", "The part of the wait before the first data moved.", "ns"),
        may(
            "sequence",
            "int64",
            "Number of the collective within its group, equal on all ranks: the source's, else its place from 0.",
        ),
    ),
    _table(
        "transfers",
        "data that a collective, or a part of it, moved over one transport",
        may("span", "int64", "`spans.id` of the collective or of the part; null for the sum over a step."),
        may("step", "int32", "Step that the source counts it to."),
        must("transport", "category", "RDMA, HCCS, PCIE, SDMA, SIO, LOCAL, …"),
        may("link", "category", "Sort of wire: ON_CHIP, HCCS, PCIE, …"),
        may("source", "int64", "Rank that it came from."),
        may("destination", "int64", "Rank that it went to."),
        may("packet", "int64", "Size of a packet; null for packets of all sizes.", "bytes"),
        may("count", "int64", "Number of packets."),
        may("bytes", "int64", "Bytes moved.", "bytes"),
        may("transit", "int64", "Time spent moving them.", "ns"),
        may("bandwidth", "float64", "Bandwidth as the source gives it (10^9 bytes).", "GB/s"),
        may("large", "float64", "Share of packets that are large, from 0 to 1, as the source gives it."),
    ),
    _table(
        "links",
        "data that collectives of one sort moved from one rank to another",
        may("step", "int32", "Step that the source counts them to."),
        must("point_to_point", "bool", "Whether two ranks communicate, rather than a group."),
        must("operation", "category", "Sort of operation as the source names it: allreduce."),
        must(
            "place",
            "category",
            "Which of the operations, ordered by falling bandwidth: top1, middle, bottom3, bottom2, bottom1; or total.",
        ),
        must("group", "category", "Name of the process group."),
        may("source", "int64", "Rank that it came from."),
        may("destination", "int64", "Rank that it went to."),
        may("transport", "category", "LOCAL, HCCS, PCIE, RDMA, SIO."),
        may("bytes", "int64", "Bytes moved.", "bytes"),
        may("transit", "int64", "Time spent moving them.", "ns"),
        may("bandwidth", "float64", "Bandwidth as the source gives it (10^9 bytes).", "GB/s"),
        may("name", "category", "Name of the operation; null for a total."),
    ),
    _table(
        "counters",
        "one sample of one counter",
        must("ts", "int64", "Time of the sample, since the Unix epoch.", "ns"),
        must("track", "int32", "`tracks.id` of the counter's lane."),
        must("name", "category", "Name of the counter."),
        must("value", "float64", "Value.", "see unit"),
        must("unit", "category", "Unit: %, bytes, bytes/s, …; empty for plain counts."),
    ),
    _table(
        "allocations",
        "memory taken or freed",
        must("ts", "int64", "Time, since the Unix epoch.", "ns"),
        must("device", "category", "`cpu`, or device and index: `cuda:0`."),
        may("address", "int64", "Address of the block; the bits of an unsigned number."),
        must("bytes", "int64", "Bytes taken; negative when freed.", "bytes"),
        may("allocated", "int64", "Allocated on the device after this event.", "bytes"),
        may("reserved", "int64", "Reserved by the framework's allocator after this event.", "bytes"),
        may("active", "int64", "In use on the device after this event, where the source tells it apart.", "bytes"),
        may("span", "int64", "`spans.id` of the innermost operator during which it happened."),
        may("thread", "int64", "Native thread id on which it happened."),
        may(
            "block", "int64", "Number that the rows of one block share; null where its address is all that tells them."
        ),
        may("name", "category", "Operator as the source names it, where it does."),
        may("component", "category", "Part of the software that took it; null for the framework."),
        may("stream", "int64", "Stream that the block belongs to, or its address."),
        may("unused", "int64", "When the device last used the freed block, where the source tells it apart.", "ns"),
        may("stack", "int64", "`stacks.id` of the Python stack that took or freed it, where the source has one."),
    ),
    _table(
        "memory_segments",
        "memory that the framework's allocator has taken from the device, when the recording ended",
        must("device", "category", "Device and index: `cuda:0`."),
        may("address", "int64", "Where it begins; the bits of an unsigned number."),
        must("bytes", "int64", "Size.", "bytes"),
        must("allocated", "int64", "Sum of its blocks in use.", "bytes"),
        may("requested", "int64", "What the program asked for when it took these blocks.", "bytes"),
        may("awaiting", "int64", "Sum of blocks given back that a stream may still use.", "bytes"),
        must("largest_free", "int64", "Largest block in it that is free.", "bytes"),
        must("blocks", "int64", "Number of its blocks in use."),
        may("stream", "int64", "Stream that it belongs to."),
        may("pool", "category", "Pool for small or for large blocks, as the source names it."),
        may("expandable", "bool", "Whether it can grow."),
        may("stack", "int64", "`stacks.id` of the Python stack that made the allocator take it."),
    ),
    _table(
        "static_memory",
        "memory that a compiled graph sets aside for an operator",
        must("name", "category", "Name of the operator."),
        must("device", "category", "`cpu`, or device and index: `npu:0`."),
        may("model", "category", "Name of the model."),
        may("graph", "int64", "Number of the graph."),
        may("first_node", "int64", "Place of the operator from which on it is held."),
        may("last_node", "int64", "Place of the last one that needs it; null: to the end."),
        must("bytes", "int64", "Size.", "bytes"),
    ),
    _table(
        "live_memory",
        "memory alive when the recording ended, taken by one call stack",
        must("kind", "category", "Sort of memory as the source names it: `buffer`, `executable`; else `memory`."),
        may("device", "category", "`cpu`, or device and index: `cuda:0`; null where it is none's."),
        may("count", "int64", "Number of blocks."),
        must("bytes", "int64", "Their size together.", "bytes"),
        may("stack", "int64", "`stacks.id` of the call stack that took them."),
    ),
    _table(
        "stacks",
        "an interned call stack",
        must("id", "int64", "Identifier, unique within the rank."),
        must("frames", "list[frame]", "Frames, innermost first: file, line, function."),
    ),
    _table(
        "steps",
        "a training step",
        must("number", "int32", "Number of the step in the training, counted from 0 unless the source numbers it."),
        must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        must("dur", "int64", "Duration.", "ns"),
        may("epoch", "int32", "Epoch; null where the source does not say."),
        must("source", "enum:step_source", "Declared by the program, or inferred."),
        may(
            "launched_before",
            "int64",
            "Pieces of device work in it that were launched before the recording began: with any, it is not typical; "
            "null where the launching calls are not known.",
        ),
    ),
    _table(
        "run_steps",
        "a training step of the whole run, recorded in the window or not",
        must("number", "int32", "Number of the step, as in `steps`."),
        must("ts", "int64", "Start, since the Unix epoch; the end where the duration is unknown.", "ns"),
        may("dur", "int64", "Duration; null if its start was not seen, or a window was prepared inside.", "ns"),
        must("recorded", "bool", "Whether `steps` has it, too: it lies in the window."),
        may("cpu", "int64", "CPU time of the thread that trains; null from here on if the system does not say.", "ns"),
        may("delay", "int64", "Run-queue delay: time in which that thread could run but another had the core.", "ns"),
        may("minor_faults", "int64", "Page faults of that thread that needed no disk."),
        may("major_faults", "int64", "Page faults of that thread that needed a disk."),
        may("read", "int64", "Bytes that thread had read from a disk, in blocks of 512.", "bytes"),
        may("written", "int64", "Bytes that thread wrote to files on a disk, which may get them later.", "bytes"),
        may("voluntary_switches", "int64", "How often that thread gave up its core, to wait for something."),
        may("involuntary_switches", "int64", "How often its core was taken from it."),
        may("data_wait", "int64", "Wait for the next batch; null where no data loader was seen yet.", "ns"),
        may("batches_ready", "int64", "Batches that workers had ready when it asked for its last; null if unknown."),
    ),
    _table(
        "compilations",
        "a compilation of a function, or a stage of one, during the run, inside the window or not; none below 0.1 ms",
        must("name", "text", "Stage and function: `compile step`, `trace loss`."),
        must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        must("dur", "int64", "Duration; a stage may contain others.", "ns"),
        may("function", "text", "What was compiled: its name and place; the same text for each compilation of it."),
        may("arguments", "text", "Types and shapes of its arguments, if the framework says them."),
        may("why", "text", "Why it was compiled again; null the first time."),
    ),
    _table(
        "batches",
        "a batch that a data loader made, in the training process or in a worker, recorded in the window or not",
        must("ts", "int64", "When it began, since the Unix epoch.", "ns"),
        must("dur", "int64", "Duration: samples, collation, and what lies between.", "ns"),
        must("dataset", "category", "Class of the data set."),
        must("process", "int64", "Process that made it: the training process, or a worker."),
        must("samples", "int64", "Samples in it."),
        must("sample_dur", "int64", "Reading of all samples: `__getitem__`, or the iterator of the data set.", "ns"),
        must("sample_cpu", "int64", "CPU time of the thread meanwhile; the rest it waited.", "ns"),
        must("collate_dur", "int64", "Collation.", "ns"),
        must("collate_cpu", "int64", "CPU time of the thread meanwhile.", "ns"),
        may("elements", "int64", "Elements of the samples' first arrays, all together; null if unknown."),
        may("longest", "int64", "Elements of the largest of them."),
        may("collated", "int64", "Elements of the batch's first array; more than `elements` are padding."),
    ),
    _table(
        "run_events",
        "something other than training that happened during the run, inside the window or not",
        must(
            "name",
            "category",
            "checkpoint, evaluation, logging, compile, garbage collection or out of memory; evaluation run: from the "
            "first run of a program that evaluates (JAX) to the end of the step.",
        ),
        must("ts", "int64", "Start, since the Unix epoch.", "ns"),
        must("dur", "int64", "Duration; an evaluation that the program does not end lasts to its step's end.", "ns"),
    ),
    _table(
        "samples",
        "a look at the Python stack of a thread; or several, while it stood still; of the whole run, as `run_steps`",
        must("ts", "int64", "Time of the first look, since the Unix epoch.", "ns"),
        must("dur", "int64", "Time that it stands for: looks × the mean time between two.", "ns"),
        must("count", "int64", "How many looks."),
        must("process", "int64", "Process id: of this rank, or of a worker of its data loaders."),
        must("thread", "int64", "Native thread id."),
        must("name", "category", "Name of the thread; of a worker, that of the process."),
        may("worker", "int64", "Number of the process among those that were followed, from 1; null: of this rank."),
        may("state", "enum:sample_state", "What the thread did, see the list below; null if the source does not say."),
        may("stack", "int64", "`stacks.id`; null without a Python frame, or if the stack could not be read."),
        may("cpu", "int64", "CPU time of the thread since the look before; null at the first one.", "ns"),
    ),
    _table(
        "flows",
        "an arrow between spans",
        must("from", "int64", "`spans.id` where it begins."),
        must("to", "int64", "`spans.id` where it ends."),
        must("kind", "enum:flow_kind", "Launch, forward to backward, send to receive, device work to a wait, other."),
    ),
    _table(
        "arguments",
        "one argument of a range, as the user or the source gave it",
        must("span", "int64", "`spans.id` of the range."),
        must("key", "category", "Name of the argument."),
        must("value", "text", "Value as JSON."),
    ),
    _table(
        "pipeline",
        "an operation of the data pipeline that makes the batches",
        must("id", "int64", "Number of the operation, as the source gives it; 0 is the one that gives the batches."),
        must("name", "category", "Name as the source gave it: `BatchOp`."),
        may("workers", "int64", "Threads or processes that work on it."),
        may("capacity", "int64", "Most elements that its output queue holds; null where it has no queue."),
        may("interval", "int64", "Time between two samples of its counters.", "ns"),
        must("children", "list[int64]", "`pipeline.id` of the operations it takes from, in order."),
        must("track", "int32", "`tracks.id` of the lane with its counters: output queue, cpu user, cpu system."),
    ),
    _table(
        "metadata",
        "one fact about the run",
        must("key", "text", "Name of the fact; user metadata as given, facts of the source under their own names."),
        must("value", "text", "Value as JSON."),
    ),
    _table(
        "losses",
        "something dropped, cut, clipped or repaired",
        must("what", "category", "Name of the loss, of `stepscope.trace.losses` or of a collector."),
        must("count", "int64", "How often."),
        must("severity", "enum:severity", "`info`: nothing is missing; `data_loss`: something is; `error`: wrong."),
        must("source", "text", "File or collector."),
        must("advice", "text", "What the user can do about it."),
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _ALL}


@cache
def columns_as_text() -> str:
    """Return all columns with their types: tables that were written with another such text are stale."""
    columns = [(name, column.name, column.dtype) for name, table in TABLES.items() for column in table.columns]
    return repr(columns)


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
    states = "\n".join(
        ["## States of sampled threads", "", *(f"* `{key}`: {said}" for key, said in SAMPLE_STATES.items())]
    )
    return "\n\n".join([head, *(_table_markdown(table) for table in TABLES.values()), kinds, states]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
