"""What a Kineto trace holds: the classes of its events and the arguments read from each.

Both tokenizers, the one in C and the one over msgspec, are built from this description and give the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

#: The value of an integer column for events without one. INT64_MIN is never a time, size or identifier.
ABSENT = int(np.iinfo(np.int64).min)
#: The value of a time that is present but not a number.
BAD = ABSENT + 1


class Class(IntEnum):
    """Which arguments of an event are read.

    Every event has one class. Events of some classes belong to COLLECTIVE besides: those that name a collective.
    """

    NONE = 0
    DEVICE = 1
    RUNTIME = 2
    OPERATOR = 3
    ANNOTATION = 4
    MEMORY = 5
    OTHER = 6
    COLLECTIVE = 7


#: Category → class. Complete events of other categories, counters, marks and metadata are OTHER; flows are NONE.
CLASS_OF_CATEGORY: dict[str, Class] = {
    "kernel": Class.DEVICE,
    "Kernel": Class.DEVICE,
    "gpu_memcpy": Class.DEVICE,
    "Memcpy": Class.DEVICE,
    "gpu_memset": Class.DEVICE,
    "Memset": Class.DEVICE,
    "cuda_sync": Class.DEVICE,
    "gpu_user_annotation": Class.DEVICE,
    "mtia_ccp_events": Class.DEVICE,
    "cuda_runtime": Class.RUNTIME,
    "cuda_driver": Class.RUNTIME,
    "Runtime": Class.RUNTIME,
    "mtia_runtime": Class.RUNTIME,
    "xpu_runtime": Class.RUNTIME,
    "xpu_driver": Class.RUNTIME,
    "privateuse1_runtime": Class.RUNTIME,
    "privateuse1_driver": Class.RUNTIME,
    "cpu_op": Class.OPERATOR,
    "Operator": Class.OPERATOR,
    "user_annotation": Class.ANNOTATION,
    # Their arguments number them and their callers, which the nesting of the spans says as well.
    "python_function": Class.NONE,
    "cpu_instant_event": Class.MEMORY,
}

#: Name of the instant events that report memory.
MEMORY_EVENT = "[memory]"


@dataclass(frozen=True)
class Field:
    """One argument: its column, its type and its spellings.

    Types are ``integer``, ``real``, ``text`` (JSON as written) and ``unsigned`` (64 bits, kept as those of a signed
    integer).
    """

    column: str
    type: str
    spellings: tuple[str, ...]


def _integer(column: str, *spellings: str) -> Field:
    return Field(column, "integer", spellings)


def _real(column: str, *spellings: str) -> Field:
    return Field(column, "real", spellings)


def _text(column: str, *spellings: str) -> Field:
    return Field(column, "text", spellings)


_LINK = (_integer("external", "External id", "external id"), _integer("correlation", "correlation"))

# Written by torch.distributed on the host's call and, since 2.4, on the kernel.
_COLLECTIVE = (
    _text("collective", "Collective name"),
    _integer("elements_in", "In msg nelems"),
    _integer("elements_out", "Out msg nelems"),
    _integer("group_size", "Group size"),
    _text("dtype", "dtype"),
    _text("group", "Process Group Name"),
    _text("group_description", "Process Group Description"),
    _text("group_ranks", "Process Group Ranks"),
    _integer("first_rank", "Global rank start"),
    _integer("rank_stride", "Global rank stride"),
    _integer("source_rank", "Src Rank"),
    _integer("destination_rank", "Dst Rank"),
    _integer("collective_sequence", "Seq"),
)

_OPERATOR = (
    _integer("external", "External id", "external id"),
    _integer("scope", "Record function id"),
    _text("concrete", "Concrete Inputs"),
    _text("dtypes", "Input type"),
    _text("strides", "Input Strides"),
    _text("shapes", "Input Dims", "Input dims"),
    _integer("sequence", "Sequence number"),
    _integer("forward_thread", "Fwd thread id"),
    _text("stack", "Call stack"),
    _text("module", "Module Hierarchy"),
    _integer("flops", "flops", "FLOPs"),
)

#: Class → arguments in the order in which Kineto writes them (the decoder looks for the next one first).
FIELDS: dict[Class, tuple[Field, ...]] = {
    Class.DEVICE: (
        *_LINK,
        _integer("device", "device"),
        _integer("context", "context"),
        _integer("stream", "stream"),
        _integer("registers", "registers per thread"),
        _integer("shared_memory", "shared memory", "shared_memory"),
        _real("blocks_per_sm", "blocks per SM"),
        _real("warps_per_sm", "warps per SM"),
        _text("grid", "grid"),
        _text("block", "block"),
        _real("occupancy", "est. achieved occupancy %"),
        _integer("bytes", "bytes", "size"),
        _real("bandwidth", "memory bandwidth (GB/s)"),
        _integer("graph", "graph id"),
        _integer("graph_node", "graph node id"),
        _integer("priority", "priority", "stream priority"),
        _integer("awaited_stream", "wait_on_stream"),
        _integer("awaited_record", "wait_on_cuda_event_record_corr_id"),
    ),
    # HIP's calls name the kernel that they launch.
    Class.RUNTIME: (*_LINK, _text("kernel", "kernel")),
    Class.OPERATOR: _OPERATOR,
    Class.ANNOTATION: _OPERATOR,
    Class.COLLECTIVE: _COLLECTIVE,
    Class.MEMORY: (
        _integer("reserved", "Total Reserved"),
        _integer("allocated", "Total Allocated"),
        _integer("device", "Device Id"),
        _integer("device_type", "Device Type"),
        _integer("bytes", "Bytes"),
        Field("address", "unsigned", ("Addr",)),
    ),
}

#: Classes whose arguments are also kept as a whole, as JSON text in the column ``arguments``.
WHOLE = frozenset({Class.ANNOTATION, Class.OTHER})

#: Classes whose events are also COLLECTIVE where they have this argument, one of the columns of COLLECTIVE.
COLLECTIVE_IN = frozenset({Class.DEVICE, Class.OPERATOR, Class.ANNOTATION})
COLLECTIVE_MARK = _COLLECTIVE[0]
