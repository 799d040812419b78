"""The frames of an Ascend capture, which its text files and its database both fill.

The readers of text and of databases both return these frames, by name; ``ascend_tables`` makes the tables of
them. Times are ns since the Unix epoch, durations ns, sizes bytes; a text is as the source has it. A column
that a source does not fill is null; ``N/A`` and empty cells are null. A row of another frame is named by its
index there, from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
import polars as pl

from stepscope.read.common.distinct import same
from stepscope.trace.tables import FRAME

Frames: TypeAlias = dict[str, pl.DataFrame]

_INTERVAL = {"ts": pl.Int64(), "dur": pl.Int64()}
_TEXT, _INT, _REAL = pl.Categorical(), pl.Int64(), pl.Float64()

#: Frame → its columns.
FRAMES: dict[str, dict[str, pl.DataType]] = {
    # An interval on a host thread. `sort` is one of: operator, of the framework; api, a call of CANN; python, a call
    # named `file(line): function` or `nn.Module: …`; enqueue and dequeue, an operator goes to the thread that launches,
    # both with one `connection`; range, of mstx, or a mark, which has no duration; step, ProfilerStep#n; data, the wait
    # for a batch; garbage, Python's garbage collector.
    "host": {
        **_INTERVAL,
        "process": _INT,
        "thread": _INT,
        "name": _TEXT,  # of a call of CANN without its layer: `aclrtMemcpyAsync`, not `AscendCL@aclrtMemcpyAsync`
        "sort": _TEXT,
        "level": _TEXT,  # of a call of CANN: acl, model, node, hccl, runtime, op, queue; of an operator on a CPU: cpu
        "connection": _INT,  # shared by a call and the task it launches, or by enqueue and dequeue
        "sequence": _INT,  # autograd's; never negative
        "forward_thread": _INT,  # of a backward operator; null for 0
        "shapes": _TEXT,  # inputs of an operator, separated by `;`: `32,3;64;`
        "dtypes": _TEXT,  # of its inputs, separated by `;`
        "stack": _INT,  # stacks.id
        "domain": _TEXT,  # of an mstx range
        "module": _TEXT,  # full name of an operator of MindSpore: Default/network/…/MatMul-op0
    },
    # An interned Python stack, innermost frame first.
    "stacks": {"id": _INT, "frames": pl.List(FRAME)},
    # A task on a stream of the device: kernels, copies, events. The tasks of collectives' planes are not here.
    "tasks": {
        **_INTERVAL,
        "device": _INT,
        "stream": _INT,
        "name": _TEXT,
        "type": _TEXT,  # as the device has it: AI_CORE, KERNEL_AIVEC, PCIE_DMA_SQE, EVENT_RECORD_SQE, …; MSTX: a range
        "task": _INT,
        "context": _INT,  # 4294967295 (none) is null
        "batch": _INT,
        "model": _INT,  # 4294967295 (none) stays
        "connection": _INT,
        "bytes": _INT,  # of a copy
        "direction": _TEXT,  # of a copy: host to device, …
        "op_type": _TEXT,  # from here on only of kernels
        "core": _TEXT,  # AI_CORE, AI_VECTOR_CORE, MIX_AIC, MIX_AIV, AI_CPU, …
        "state": _TEXT,  # dynamic, static
        "blocks": _INT,
        "mix_blocks": _INT,
        "hf32": _TEXT,
        "input_shapes": _TEXT,  # without the quotes around them: `32,3,224,224;64`
        "input_dtypes": _TEXT,
        "input_formats": _TEXT,
        "output_shapes": _TEXT,
        "output_dtypes": _TEXT,
        "output_formats": _TEXT,
        "gap": _INT,  # `Wait Time`: from the end of the task before to the start, ns
        "step": _INT,  # as the source says
        "attributes": _TEXT,
        "operator": _TEXT,  # full name of the operator that launched it, if MindSpore's files have it; of a GPU
        "grid": _TEXT,  # of a GPU: `8,1,1`
        "block": _TEXT,
    },
    # A hardware counter of a task: the columns of the metric set, L2 cache, times of AI CPU.
    "task_counters": {"row": _INT, "name": _TEXT, "value": _REAL, "unit": _TEXT},  # row: of `tasks`; aic_mac_time, us
    # A communication operation: hcom_allReduce__271_0_1.
    "communications": {
        **_INTERVAL,
        "device": _INT,
        "name": _TEXT,
        "operation": _TEXT,  # as the source has it: hcom_allReduce_; null: from the name
        "group": _TEXT,
        "lane": _INT,  # of the group, from 0
        "algorithm": _TEXT,
        "dtype": _TEXT,
        "count": _INT,  # of elements
        "model": _INT,
        "connection": _INT,
        "gap": _INT,
        "step": _INT,
        "transit": _INT,
        "wait": _INT,
        "synchronisation": _INT,
        "idle": _INT,
        "core": _TEXT,  # as the file of kernels calls it: HCCL, in later versions COMMUNICATION
        "began": _INT,  # `Start Timestamp` of communication.json, which may be rounded
    },
    # A task of a communication operation, on one of its planes.
    "communication_tasks": {
        **_INTERVAL,
        "device": _INT,
        "row": _INT,  # of `communications`
        "name": _TEXT,  # Memcpy, Reduce_Inline, Notify_Wait, RDMASend, …
        "lane": _INT,  # of the group, from 0
        "plane": _INT,
        "stream": _INT,
        "task": _INT,
        "context": _INT,
        "notify": _TEXT,
        "source": _INT,  # 4294967295 is null
        "destination": _INT,
        "transport": _TEXT,  # SDMA, RDMA, LOCAL
        "link": _TEXT,  # ON_CHIP, HCCS, PCIE, …
        "rdma": _TEXT,
        "bytes": _INT,
        "dtype": _TEXT,
        "bandwidth": _REAL,  # GB/s
        "estimated": _INT,  # ns
    },
    # What an operation moved over a transport, and by size of packet.
    "bandwidths": {
        "row": _INT,  # of `communications`; null for sums over all
        "step": _INT,
        "point_to_point": pl.Boolean(),
        "name": _TEXT,  # `Total Op Info` for sums
        "group": _TEXT,
        "transport": _TEXT,  # RDMA, HCCS, PCIE, SDMA, SIO
        "packet": _INT,  # bytes of one; null: everything, and `bytes`, `bandwidth` and `large` are filled
        "count": _INT,  # of packets
        "bytes": _INT,
        "time": _INT,
        "bandwidth": _REAL,  # GB/s
        "large": _REAL,  # share of large packets
    },
    # What operations moved between two ranks.
    "matrix": {
        "step": _INT,
        "point_to_point": pl.Boolean(),
        "operation": _TEXT,  # allreduce
        "place": _TEXT,  # top1, middle, bottom1, bottom2, bottom3, total
        "group": _TEXT,
        "source": _INT,
        "destination": _INT,
        "transport": _TEXT,  # LOCAL, HCCS, PCIE, RDMA, SIO
        "bytes": _INT,
        "time": _INT,
        "bandwidth": _REAL,  # GB/s
        "name": _TEXT,  # of the operation; null for total
    },
    # An arrow from a row of `host` to a row of another frame.
    "flows": {
        "from": _INT,
        "frame": _TEXT,  # host, tasks or communications
        "to": _INT,
        # launch: from a call; operator: from an operator of the framework; queue, forward_backward, range
        "sort": _TEXT,
    },
    "steps": {"number": _INT, **_INTERVAL},
    # Total memory of a component over time (memory_record.csv).
    "memory": {
        "ts": _INT,
        "device": _INT,
        "component": _TEXT,  # PTA, GE, PTA+GE, MindSpore, APP, WORKSPACE, …
        "stream": _INT,  # the stream's address
        "allocated": _INT,
        "reserved": _INT,
        "active": _INT,
    },
    # The life of a block of memory (operator_memory.csv).
    "blocks": {
        "device": _INT,
        "name": _TEXT,  # of the operator
        "bytes": _INT,
        "ts": _INT,  # null: taken before the recording
        "release": _INT,  # null: not in the recording
        "active_release": _INT,
        "allocated": _INT,  # total, after the allocation
        "reserved": _INT,
        "active": _INT,
        "released_allocated": _INT,
        "released_reserved": _INT,
        "released_active": _INT,
        "stream": _INT,  # the stream's address
        "component": _TEXT,
        "address": _INT,
        "thread": _INT,
    },
    # Memory that a compiled graph sets aside for an operator (static_op_mem.csv).
    "static_memory": {
        "device": _INT,
        "name": _TEXT,  # without the row TOTAL
        "model": _TEXT,
        "graph": _INT,
        "first_node": _INT,
        "last_node": _INT,  # null: to the end
        "bytes": _INT,
    },
    # A sample.
    "counters": {
        "ts": _INT,
        "device": _INT,  # null: the host's
        "group": _TEXT,  # HBM, LLC, NPU MEM, NPU module memory, AI Core Freq, Acc PMU, Stars Soc Info, QoS, NIC, …
        "name": _TEXT,  # HBM 0/Read
        "value": _REAL,
        "unit": _TEXT,  # MB/s (10^6 bytes), bytes, %, MHz; empty for plain counts
    },
    # A sum that the source states of what is in the other frames.
    "stated": {
        "source": _TEXT,  # where it stands
        "what": _TEXT,  # computing, communication, communication that nothing hides; calls; operators
        "ns": _INT,  # null: not stated
        "count": _INT,  # null: not stated
        "in_steps": pl.Boolean(),  # whether it is the sum over the steps; else over everything
    },
    # An operation of the data pipeline; the samples of its queue are in `counters`, its lane is their group.
    "operations": {
        "id": _INT,
        "name": _TEXT,
        "workers": _INT,
        "capacity": _INT,
        "interval": _INT,
        "children": pl.List(pl.Int64()),
        "lane": pl.String(),
    },
    # A fact about the recording; the value is JSON. Sums without a time too: `hbm.csv` → its rows as objects.
    "facts": {"key": pl.String(), "value": pl.String()},
}


def rows_of(name: str, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows, whose texts are text, as the frame ``name``."""
    plain = {column: pl.String() if dtype == pl.Categorical else dtype for column, dtype in FRAMES[name].items()}
    return conform(name, pl.DataFrame(rows, schema=plain))


@cache
def empty(name: str) -> pl.DataFrame:
    """Return the frame ``name`` without rows: one shared object, as frames are immutable."""
    return pl.DataFrame(schema=FRAMES[name])


def conform(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the columns of the frame ``name``; those it lacks are null."""
    if not frame.height:
        return empty(name)
    # Series by series: a plan costs more than these casts.
    given = {column.name: column for column in frame.iter_columns()}
    return pl.DataFrame(
        [
            given[column].cast(dtype) if column in given else same(column, None, frame.height, dtype)
            for column, dtype in FRAMES[name].items()
        ]
    )


def stacked(name: str, parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of parts, each conformed, as one frame ``name``."""
    return pl.concat([empty(name), *(conform(name, one) for one in parts)])


def coalesced(
    frame: pl.DataFrame,
    said: pl.DataFrame,
    key: str | Sequence[str],
    names: Iterable[str] = (),
    instead: Iterable[str] = (),
) -> pl.DataFrame:
    """Return a frame with the values of another's rows of the same key.

    Args:
        frame: The frame; its rows and columns stay.
        said: The other; a key occurs once.
        key: Columns that identify a row.
        names: Columns whose nulls are filled.
        instead: Columns that are replaced, except by null.
    """
    joined = frame.join(said, on=key, how="left", suffix="_said", maintain_order="left")
    made = {name: pl.coalesce(name, f"{name}_said") for name in names}
    made |= {name: pl.coalesce(f"{name}_said", name) for name in instead}
    return joined.select(made.get(name, pl.col(name)).alias(name) for name in frame.columns)


def numbered(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with the numbers of its rows as the column ``row``."""
    return frame.clone().insert_column(0, pl.Series("row", np.arange(frame.height)))


def complete(frames: Mapping[str, pl.DataFrame]) -> Frames:
    """Return all frames: those given, conformed; the others empty."""
    return {name: conform(name, frames[name]) if name in frames else empty(name) for name in FRAMES}
