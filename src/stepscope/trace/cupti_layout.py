"""How CUPTI lays out its activity records: which bytes hold what, in which version of the library.

Offsets and sizes are those of ``cupti_activity.h`` in NVIDIA's packages ``nvidia-cuda-cupti``. Records only ever grew
at their end: a field is at one place in all versions that have it. ``tests/golden/test_cupti_layout.py`` compiles the
headers of CUDA 11.7, 11.8, 12.0, 12.9, 13.0 and 13.5 and compares every field, and lets the libraries that run without
a driver (up to 13.1) step over records. Sizes of 11.0 to 11.6 follow the header's notes on when a structure was
replaced.

A version number alone does not tell: CUDA 11.8, 12.0 and 12.1 all say 18, with kernels of 200 and of 208 bytes.

The standard library only: the training process imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

#: First bytes of a file of activity buffers, see :mod:`stepscope.collect.cuda.cupti_recorder`.
MAGIC = b"SSC1\n"

#: Bytes of one activity buffer; a longer one is damage to the reader.
BUFFER = 4 << 20
#: Seconds between two fetches of complete buffers.
FETCH_INTERVAL = 0.5

#: Sorts of blocks in such a file, by their first byte.
FACTS, RECORDS = b"F", b"R"


class Kind(IntEnum):
    """The kinds of records that are read, numbered as ``CUpti_ActivityKind``."""

    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    DEVICE = 8
    CONTEXT = 9
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17
    MEMCPY2 = 22
    SYNCHRONIZATION = 38
    EXTERNAL_CORRELATION = 39
    MEMORY2 = 49


#: name → (offset, format): unsigned (u) or signed (i) and bytes, as numpy writes types.
_Fields = dict[str, tuple[int, str]]

_PLACE: _Fields = {"start": (16, "u8"), "end": (24, "u8")}
_COPY: _Fields = {
    "copy_kind": (4, "u1"), "source_kind": (5, "u1"), "destination_kind": (6, "u1"), "flags": (7, "u1"),
    "bytes": (8, "u8"), **_PLACE, "device": (32, "u4"), "context": (36, "u4"), "stream": (40, "u4"),
}  # fmt: skip
_KERNEL: _Fields = {
    "cache": (4, "u1"), "registers": (6, "u2"), **_PLACE, "device": (40, "u4"), "context": (44, "u4"),
    "stream": (48, "u4"), **{f"grid_{axis}": (52 + 4 * place, "i4") for place, axis in enumerate("xyz")},
    **{f"block_{axis}": (64 + 4 * place, "i4") for place, axis in enumerate("xyz")}, "static_shared": (76, "i4"),
    "dynamic_shared": (80, "i4"), "correlation": (92, "u4"), "name": (104, "u8"), "graph_node": (144, "u8"),
    "graph": (156, "u4"), "priority": (216, "i4"),
}  # fmt: skip
_CALL: _Fields = {
    "callback": (4, "u4"), "start": (8, "u8"), "end": (16, "u8"), "process": (24, "u4"), "thread": (28, "u4"),
    "correlation": (32, "u4"), "result": (36, "u4"),
}  # fmt: skip

FIELDS: dict[Kind, _Fields] = {
    Kind.MEMCPY: {**_COPY, "correlation": (44, "u4"), "graph_node": (64, "u8"), "graph": (72, "u4")},
    Kind.MEMCPY2: {
        **_COPY, "source_device": (44, "u4"), "destination_device": (52, "u4"), "correlation": (60, "u4"),
        "graph_node": (72, "u8"), "graph": (80, "u4"),
    },
    Kind.MEMSET: {
        "value": (4, "u4"), "bytes": (8, "u8"), **_PLACE, "device": (32, "u4"), "context": (36, "u4"),
        "stream": (40, "u4"), "correlation": (44, "u4"), "memory_kind": (50, "u2"), "graph_node": (64, "u8"),
        "graph": (72, "u4"),
    },
    Kind.KERNEL: _KERNEL,
    Kind.CONCURRENT_KERNEL: _KERNEL,
    Kind.DRIVER: _CALL,
    Kind.RUNTIME: _CALL,
    Kind.DEVICE: {
        "memory_bytes": (16, "u8"), "warp_threads": (32, "u4"), "multiprocessors": (44, "u4"), "warps": (52, "u4"),
        "blocks": (56, "u4"), "shared_memory": (60, "u4"), "registers": (64, "u4"), "registers_per_block": (68, "u4"),
        "threads_per_block": (76, "u4"), "major": (104, "u4"), "minor": (108, "u4"), "device": (112, "u4"),
        "name": (136, "u8"),
    },
    Kind.CONTEXT: {"context": (4, "u4"), "device": (8, "u4"), "null_stream": (14, "u2")},
    Kind.OVERHEAD: {
        "overhead_kind": (4, "u4"), "object_kind": (8, "u4"), "process": (12, "u4"), "thread": (16, "u4"),
        "start": (24, "u8"), "end": (32, "u8"), "correlation": (40, "u4"),
    },
    Kind.SYNCHRONIZATION: {
        "sort": (4, "u4"), "start": (8, "u8"), "end": (16, "u8"), "correlation": (24, "u4"), "context": (28, "u4"),
        "stream": (32, "u4"), "event": (36, "u4"),
    },
    Kind.EXTERNAL_CORRELATION: {"external_kind": (4, "u4"), "external": (8, "u8"), "correlation": (16, "u4")},
    Kind.MEMORY2: {
        "operation": (4, "u4"), "memory_kind": (8, "u4"), "correlation": (12, "u4"), "address": (16, "u8"),
        "bytes": (24, "u8"), "start": (32, "u8"), "process": (48, "u4"), "device": (52, "u4"), "context": (56, "u4"),
        "stream": (60, "u4"),
    },
}  # fmt: skip

#: Bytes of a record from a version of CUDA on (100 x major + minor), up to the next that is named.
_KERNEL_SIZES = {
    1100: 160, 1102: 168, 1106: 176, 1108: 200, 1200: 208, 1300: 216, 1301: 224, 1303: 232, 1304: 248,
}  # fmt: skip
SIZES: dict[Kind, dict[int, int]] = {
    Kind.MEMCPY: {1100: 72, 1101: 80, 1106: 88, 1208: 96, 1304: 112},
    Kind.MEMCPY2: {1100: 80, 1101: 88, 1106: 96},
    Kind.MEMSET: {1100: 72, 1101: 80, 1106: 88, 1304: 104},
    Kind.KERNEL: _KERNEL_SIZES,
    Kind.CONCURRENT_KERNEL: _KERNEL_SIZES,
    Kind.DRIVER: {1100: 40},
    Kind.RUNTIME: {1100: 40},
    Kind.DEVICE: {1100: 152, 1106: 176, 1202: 184, 1302: 192},
    Kind.CONTEXT: {1100: 16, 1204: 24, 1205: 32, 1301: 40},
    Kind.OVERHEAD: {1100: 40, 1203: 48, 1204: 56},
    Kind.SYNCHRONIZATION: {1100: 40, 1208: 56},
    Kind.EXTERNAL_CORRELATION: {1100: 24},
    Kind.MEMORY2: {1102: 112, 1106: 120, 1206: 128},
}

#: CUPTI's own version → the CUDA it came with; from 13.0 on the version says it itself. Its header lists them.
_CUDA_OF = {
    13: 1100, 14: 1101, 15: 1102, 16: 1105, 17: 1106, 18: 1108, 19: 1200, 20: 1202, 21: 1203, 22: 1204, 23: 1205,
    24: 1206, 26: 1208, 27: 1209, 28: 1209,
}  # fmt: skip
_NEWEST = 1305


@dataclass(frozen=True)
class Layout:
    """How one version of CUPTI lays out its records.

    Attributes:
        cuda: Version of CUDA, 100 x major + minor.
        sizes: Bytes of a record of each kind that the version has.
    """

    cuda: int
    sizes: Mapping[Kind, int]

    def fields(self, kind: Kind) -> _Fields:
        """Return the fields that a record of this kind has."""
        size = self.sizes[kind]
        return {name: place for name, place in FIELDS[kind].items() if place[0] + int(place[1][1:]) <= size}


def cuda_of(version: int, major: int) -> int:
    """Return the version of CUDA that a CUPTI came with, as 100 x major + minor.

    Args:
        version: What ``cuptiGetVersion`` says.
        major: Major number in the library's file name: 12 of ``libcupti.so.12``; 0 where it is not known.

    Raises:
        ValueError: The version is not known, and neither are its records.
    """
    cuda = _CUDA_OF.get(version, version // 100 if version >= 130000 else 0)
    if version == 18 and major == 12:
        cuda = 1200
    if not 0 < cuda <= _NEWEST or (major and cuda // 100 != major):
        message = f"CUPTI says version {version} (library {major or 'unknown'}), whose records stepscope does not know"
        raise ValueError(message)
    return cuda


def layout_of(cuda: int) -> Layout:
    """Return the layout of a version of CUDA that :func:`cuda_of` gave.

    Raises:
        ValueError: It is not known.
    """
    if not 1100 <= cuda <= _NEWEST:
        message = f"records of CUDA {cuda // 100}.{cuda % 100} are not known"
        raise ValueError(message)
    sizes = {
        kind: max((since, size) for since, size in steps.items() if since <= cuda)[1]
        for kind, steps in SIZES.items()
        if min(steps) <= cuda
    }
    return Layout(cuda, sizes)
