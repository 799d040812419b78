"""Builds what CUPTI would have written: buffers of records in any layout, and whole files."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.cupti_layout import FACTS, MAGIC, RECORDS, Kind, Layout, layout_of

#: A version of CUDA for every layout that any kind of record has had.
VERSIONS = (1100, 1101, 1102, 1105, 1106, 1108, 1200, 1202, 1203, 1204, 1205, 1206, 1208, 1300, 1301, 1302, 1303, 1304)

H100 = {
    "device": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "major": 9,
    "minor": 0,
    "multiprocessors": 132,
    "threads": 2048,
    "warp_threads": 32,
    "threads_per_block": 1024,
    "blocks": 32,
    "registers": 65536,
    "registers_per_block": 65536,
    "shared_memory": 233472,
}


def record(layout: Layout, kind: Kind, **values: int) -> bytes:
    """Return one record; fields that are not named are 0, those that the layout lacks must not be named."""
    content = bytearray(layout.sizes[kind])
    content[:4] = int(kind).to_bytes(4, "little")
    fields = layout.fields(kind)
    for name, value in values.items():
        offset, form = fields[name]
        size = int(form[1:])
        content[offset : offset + size] = value.to_bytes(size, "little", signed=form[0] == "i")
    return bytes(content)


@dataclass
class File:
    """A file of the ``cupti`` collector, block by block."""

    path: Path
    cuda: int = 1300
    process: int = 4711
    calls: Mapping[str, Sequence[tuple[int, str]]] = field(
        default_factory=lambda: {
            "runtime": [(211, "cudaLaunchKernel"), (41, "cudaMemcpyAsync")],
            "driver": [(307, "cuLaunchKernel")],
        }
    )

    def __post_init__(self) -> None:
        self.layout = layout_of(self.cuda)
        self.frames = FrameWriter(self.path, MAGIC)
        self.facts(
            process=self.process,
            host="node",
            cuda=self.cuda,
            version=130001,
            calls=self.calls,
            devices=[H100],
            anchors=[(1_000, 1_700_000_000_000_001_000, 10)],
        )

    def record(self, kind: Kind, **values: int) -> bytes:
        return record(self.layout, kind, **values)

    def facts(self, **facts: Any) -> None:
        self.frames.append(FACTS + pack(facts))

    def names(self, rows: Iterable[tuple[int, str, str]]) -> None:
        self.facts(names=list(rows))

    def buffer(self, *records: bytes) -> None:
        self.frames.append(RECORDS + zlib.compress(b"".join(records), 1))

    def close(self) -> Path:
        self.facts(closed=True)
        self.frames.close()
        return self.path
