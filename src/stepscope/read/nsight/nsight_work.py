"""Kernels, copies, fills and whole graphs of Nsight Systems' export: rows → columns of spans and of their details."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from stepscope.read.common import communication
from stepscope.read.common.distinct import of_each, same
from stepscope.read.nsight.nsight_tables import COPIES, FILLS, GRAPHS, KERNELS, device

#: ``ENUM_CUDA_MEMCPY_OPER`` and ``ENUM_CUDA_MEM_KIND`` by number, as Kineto spells them.
_COPY_NAMES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
               "Unified HtoD", "Unified DtoH", "Unified DtoD")  # fmt: skip
MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")


def spelled(words: Sequence[str], number: int | None, unknown: str) -> str:
    """Return the word of a number."""
    return words[number] if number is not None and 0 <= number < len(words) else unknown


def columns(table: str, rows: pl.DataFrame) -> list[pl.Series]:
    """Return name, kind, device, stream and details of the work in a table."""
    numbers = {"context": "contextId", "stream": "streamId", "graph_node": "graphNodeId"}
    placed = [rows[given].alias(ours) for ours, given in numbers.items() if given in rows.columns]
    return [device(rows), *placed, *WORK[table](rows)]


def _kernels(rows: pl.DataFrame) -> list[pl.Series]:
    name = of_each(lambda full, short: full or short or "unknown kernel", rows["demangledName"], rows["shortName"])
    kind = of_each(_kind, name, dtype=pl.String())
    sizes = [pl.concat_list([f"{ours}{axis}" for axis in "XYZ"]).alias(ours) for ours in ("grid", "block")]
    shared = rows["staticSharedMemory"] + rows["dynamicSharedMemory"]
    registers = rows["registersPerThread"].alias("registers")
    return [name.alias("name"), kind.alias("kind"), *rows.select(*sizes), registers, shared.alias("shared_memory")]


def _kind(name: str) -> str:
    return "collective" if communication.transport_of_kernel(name) else "kernel"


def _copies(rows: pl.DataFrame) -> list[pl.Series]:
    return [of_each(_copy, rows["copyKind"], rows["srcKind"], rows["dstKind"]).alias("name"), *_sized(rows, "memcpy")]


def _copy(kind: int | None, source: int | None, target: int | None) -> str:
    ends = f" ({spelled(MEMORIES, source, 'Unknown')} -> {spelled(MEMORIES, target, 'Unknown')})"
    return f"Memcpy {spelled(_COPY_NAMES, kind, 'Unknown')}{ends if source is not None and target is not None else ''}"


def _fills(rows: pl.DataFrame) -> list[pl.Series]:
    name = of_each(lambda kind: f"Memset ({spelled(MEMORIES, kind, 'Unknown')})", rows["memKind"])
    return [name.alias("name"), *_sized(rows, "memset")]


def _sized(rows: pl.DataFrame, kind: str) -> list[pl.Series]:
    return [same("kind", kind, rows.height, pl.String()), rows["bytes"].set(rows["bytes"] < 0, None)]


def _graphs(rows: pl.DataFrame) -> list[pl.Series]:
    """Return graphs that were recorded as a whole: what they did is unknown, so they count as computing."""
    name = of_each(lambda number: f"CUDA graph {'' if number is None else number}".strip(), rows["graphId"])
    return [name.alias("name"), same("kind", "other", rows.height, pl.String()), rows["graphId"].alias("graph")]


#: Table → what makes the columns of its own.
WORK: Mapping[str, Callable[[pl.DataFrame], list[pl.Series]]] = {
    KERNELS: _kernels,
    COPIES: _copies,
    FILLS: _fills,
    GRAPHS: _graphs,
}
