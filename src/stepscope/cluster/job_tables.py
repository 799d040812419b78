"""The tables of a job: the summaries of its ranks, below each other. Every analysis of a job reads these only.

Times are integers in nanoseconds since the Unix epoch **by each rank's own clock**; :mod:`stepscope.cluster.clocks`
says what to add to a rank's times to get those of the job. Unknown is null, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import polars as pl

from stepscope.trace.schema import Table, may, must

Frame: TypeAlias = pl.DataFrame

_RANK = must("rank", "int32", "Rank in the job.")

_ALL = (
    Table(
        "ranks",
        "a rank, or a file that says that it is one",
        (
            _RANK,
            must("directory", "text", "Name of its directory or capture."),
            may("fault", "text", "Why it could not be read; then every other column may be null."),
            may("world_size", "int64", "Number of ranks in its job, as it says itself."),
            may("host", "category", "Machine that it ran on; ranks of one machine share its clock."),
            may("process", "int64", "Process id."),
            may("framework", "category", "Module of the framework, such as `torch`."),
            may("version", "category", "Version of the framework."),
            may("device", "category", "Device that worked: `cuda:0`; `cpu` for a rank without one."),
            may("device_name", "category", "What the device is: `NVIDIA H100 80GB HBM3`."),
            may("begin", "int64", "Start of what was recorded.", "ns"),
            may("end", "int64", "Its end.", "ns"),
            may("wall_clock", "bool", "Whether its times are set by a wall clock; false: their origin is arbitrary."),
            may(
                "code",
                "text",
                "Fingerprint of the multiset of kernels, or operators of a rank without a device, of its usual step.",
            ),
            may("cut", "bool", "Whether its capture ends before the recording did."),
            may("other_load", "float64", "Cores that other processes took while it ran, from 0; null if not sampled."),
            may("cores", "text", "Cores that its training thread may use, with commas between them."),
            may("clock_mhz", "float64", "Median clock of its device."),
            may("step_count", "int64", "Number of its steps, those included that its summary has no room for."),
            may("kept_until", "int64", "Start of what its summary has no room for; null: it holds all.", "ns"),
            may("inferred", "bool", "Whether its steps last from their first to their last work: no mark says more."),
            may("other_steps", "int64", "Steps of its run that were not recorded; null: too few to compare with."),
            may("other_step", "int64", "Their median duration.", "ns"),
            may("typical", "bool", "Whether its recorded steps are like the others."),
            may("imported", "bool", "Whether another tool recorded it."),
            may("checked", "bool", "Whether its capture states totals, and what was read was compared with them."),
        ),
    ),
    Table(
        "steps",
        "a step of a rank",
        (
            _RANK,
            must("step", "int32", "Number of the step."),
            must("ts", "int64", "Start.", "ns"),
            must("dur", "int64", "Duration.", "ns"),
            *(
                may(name, "int64", f"Part of the step: {name.replace('_', ' ')}.", "ns")
                for name in ("computing", "communication", "copy", "data_wait", "sync", "host_only", "idle")
            ),
            may("overlapped", "int64", "Communication while something computes; not a part.", "ns"),
            *(
                may(name, "int64", f"Phase of the step: {name}.", "ns")
                for name in ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint", "other")
            ),
            may("communication_phase", "int64", "Phase of the step: communication outside of the other phases.", "ns"),
            may("data_total", "int64", "Waiting for batches, also while something works.", "ns"),
            may("preparing", "int64", "From the start of the step to its first device work.", "ns"),
            may("garbage", "int64", "Pauses of the garbage collector.", "ns"),
            may("cpu", "int64", "CPU time of the training thread.", "ns"),
            may("delay", "int64", "Run-queue delay of the training thread.", "ns"),
        ),
    ),
    Table(
        "collectives",
        "a collective, or point-to-point communication, of a rank",
        (
            _RANK,
            may("step", "int32", "Step in which it starts."),
            may("group", "int32", "`groups.id`; null if the capture does not name a group."),
            must("operation", "category", "allreduce, allgather, reduce_scatter, alltoall, broadcast, send, recv, …"),
            may("sequence", "int64", "Number within its group, equal on all ranks; of send and recv by pair."),
            must("ts", "int64", "Start: the rank arrives.", "ns"),
            must("dur", "int64", "Duration; the end is when its part is done.", "ns"),
            may("launch", "int64", "Start of the host's call; null where it is not known.", "ns"),
            may("bytes_in", "int64", "Bytes the rank puts in.", "bytes"),
            may("bytes_out", "int64", "Bytes the rank receives.", "bytes"),
            may("dtype", "category", "Type of the elements."),
            may("source", "int64", "Sending rank of point-to-point communication."),
            may("destination", "int64", "Receiving rank."),
            may("transit", "int64", "Time spent moving data, as the source states it.", "ns"),
            may("wait", "int64", "Time spent waiting for others, as the source states it.", "ns"),
            may("exposed", "int64", "The part of its time in which nothing computes.", "ns"),
            may("launched", "bool", "False: the host launched it, and no work of it is recorded (a hung collective)."),
        ),
    ),
    Table(
        "groups",
        "a process group of the job",
        (
            must("id", "int32", "Identifier, unique within the job."),
            may("ranks", "list[int64]", "Its ranks, ascending; null if no source says."),
            may("size", "int64", "Number of its ranks."),
            may("name", "text", "Its name, as the source gives it."),
            may("description", "text", "What the program calls it: `default_pg`, `mesh_tp`."),
            may("transport", "category", "nccl, gloo, hccl, …"),
        ),
    ),
    Table(
        "operators",
        "an operator or kernel of a rank in a step: those that take most time; of the first names what is left, with "
        "the module `(others)`; all others as one row `(others)`",
        (
            _RANK,
            may("step", "int32", "Step."),
            must("kind", "category", "operator (host, self time) or kernel (device)."),
            must("name", "text", "Its name."),
            may("operator", "text", "Operator that launched it, of a kernel."),
            may("module", "text", "Module that runs it, outermost first, separated by `/`."),
            may("phase", "category", "Phase of the step."),
            must("count", "int64", "Number of calls."),
            must("total", "int64", "Their time.", "ns"),
        ),
    ),
    Table(
        "functions",
        "a function of the program's own Python code on a rank, or a line of one; those that take most time",
        (
            _RANK,
            must("thread", "category", "training, or workers: all that load data for the rank, together."),
            must("function", "text", "Its name, its file, and the line that takes most of it: `audit (train.py:10)`."),
            must("whole", "bool", "True: the function; false: that line of it."),
            must("total", "int64", "Time in it and in what it calls, a step.", "ns"),
            may("looks", "int64", "In how many looks at the thread it was seen; null where each call was recorded."),
        ),
    ),
    Table(
        "events",
        "something other than training on a rank: garbage collection, checkpoint, evaluation, compile, …",
        (
            _RANK,
            must("name", "category", "What it is."),
            must("ts", "int64", "Start.", "ns"),
            must("dur", "int64", "Duration.", "ns"),
        ),
    ),
    Table(
        "losses",
        "something that a rank dropped, cut or repaired",
        (
            _RANK,
            must("what", "category", "Name of the catalogue in `stepscope.trace.losses`."),
            must("count", "int64", "How often."),
            must("severity", "category", "info, data_loss or error."),
        ),
    ),
)
JOB_SCHEMA: dict[str, Table] = {table.name: table for table in _ALL}

_TYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "int32": pl.Int32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "text": pl.String(),
    "category": pl.String(),
    "list[int64]": pl.List(pl.Int64()),
}


def empty(name: str) -> Frame:
    """Return the table ``name`` without rows, every column with its type."""
    return pl.DataFrame(schema={column.name: _TYPES[column.dtype] for column in JOB_SCHEMA[name].columns})


def conform(name: str, frame: Frame) -> Frame:
    """Return ``frame`` with the columns of the table ``name`` in order and with their types; missing ones are null."""
    columns = JOB_SCHEMA[name].columns
    there = set(frame.columns)
    return frame.select(
        (pl.col(column.name) if column.name in there else pl.lit(None, dtype=_TYPES[column.dtype]))
        .cast(_TYPES[column.dtype])
        .alias(column.name)
        for column in columns
    )


@dataclass(frozen=True)
class JobTables:
    """The tables of a job, each as :data:`JOB_SCHEMA` describes it; a rank's rows lie together, ranks ascend."""

    ranks: Frame = field(default_factory=lambda: empty("ranks"))
    steps: Frame = field(default_factory=lambda: empty("steps"))
    collectives: Frame = field(default_factory=lambda: empty("collectives"))
    groups: Frame = field(default_factory=lambda: empty("groups"))
    operators: Frame = field(default_factory=lambda: empty("operators"))
    functions: Frame = field(default_factory=lambda: empty("functions"))
    events: Frame = field(default_factory=lambda: empty("events"))
    losses: Frame = field(default_factory=lambda: empty("losses"))
