"""Whether results have rows, from the tables alone: no result is computed for it.

Each function returns True or False where the tables say so, and None where only the computation of the result does.
"""

from __future__ import annotations

from typing import TypeAlias

import polars as pl

from stepscope.analyse.operators.operator_calls import OPERATOR_KINDS, rows_of
from stepscope.analyse.step.activity import DEVICE_WORK, not_recorded, track_kinds
from stepscope.trace.tables import RankTables, Tables, columns_of, has_rows, shared

#: Yes, no, or not known before the result is computed.
Answer: TypeAlias = "bool | None"


@shared
def _pairs(tables: Tables) -> list[tuple[int, str]]:
    """Return the tracks with the kinds of spans on them."""
    pairs = columns_of(tables, "spans", "track", "kind")
    # Spans of a track follow each other, and mostly those of a kind: what is unlike the row before is few.
    unlike = (pl.col(name).ne_missing(pl.col(name).shift()) for name in pairs.columns)
    pairs = pairs.filter(pl.any_horizontal(unlike)).unique()
    return pairs.with_columns(pl.col("kind").cast(pl.String)).rows()


def seen(tables: Tables) -> frozenset[tuple[str, str]]:
    """Return the kinds of tracks with the kinds of spans on them."""
    kinds = track_kinds(tables)
    return frozenset((kinds[track], kind) for track, kind in _pairs(tables))


def devices(tables: Tables) -> list[str]:
    """Return the names of the devices that worked, in order."""
    tracks = columns_of(tables, "tracks", "id", "kind", "device").with_columns(pl.col("device").cast(pl.String))
    streams = {track: device for track, kind, device in tracks.iter_rows() if kind == "stream"}
    return sorted({streams[track] for track, kind in _pairs(tables) if track in streams and kind in DEVICE_WORK})


def recorded(tables: Tables, name: str) -> bool:
    """Return whether a table surely has rows; :func:`has_rows` is also true of a choice of rows that may be empty."""
    if not isinstance(tables, RankTables):
        return False
    return name in tables.files or (name in tables.in_memory and tables.in_memory[name].height > 0)


def _or_unknown(*, sure: bool, possible: bool) -> Answer:
    return True if sure else None if possible else False


def _on_device(tables: Tables) -> bool:
    return any(("stream", kind) in seen(tables) for kind in DEVICE_WORK)


def _operators(tables: Tables) -> bool:
    return any(("thread", kind) in seen(tables) for kind in OPERATOR_KINDS)


def steps(tables: Tables) -> Answer:
    """Answer for the split of the steps: that of the whole range where there is none."""
    located = any(track in ("thread", "stream") for track, _ in seen(tables))
    possible = has_rows(tables, "steps") or bool(not_recorded(tables))  # a source may state what it did not record
    return _or_unknown(sure=recorded(tables, "steps") or located, possible=possible)


def idle(tables: Tables) -> Answer:
    """Answer for the idle time of each step and device: known where it is known what counts as work."""
    return None if not_recorded(tables) else steps(tables)


def device_work(tables: Tables) -> Answer:
    """Answer for what is told of the work of devices only."""
    return _on_device(tables)


def work(tables: Tables) -> Answer:
    """Answer for the work of devices and the operators of hosts; the replay of a graph may stand for one."""
    possible = has_rows(tables, "kernels") or bool(not_recorded(tables))
    return _or_unknown(sure=_on_device(tables) or _operators(tables), possible=possible)


def operators(tables: Tables) -> Answer:
    """Answer for the operators of hosts."""
    return _or_unknown(sure=_operators(tables), possible=has_rows(tables, "kernels"))


def run_steps(tables: Tables) -> Answer:
    """Answer for the steps of the run, recorded or not."""
    return _or_unknown(sure=recorded(tables, "run_steps"), possible=has_rows(tables, "run_steps"))


def data_waits(tables: Tables) -> Answer:
    """Answer for the waits for batches, and the stages of a data pipeline, which counters tell."""
    return _or_unknown(sure=("thread", "data") in seen(tables), possible=has_rows(tables, "counters"))


def communication(tables: Tables) -> Answer:
    """Answer for the communication of a rank."""
    if not has_rows(tables, "collectives"):
        return False
    said = columns_of(tables, "collectives", "span")["span"]
    return bool((rows_of(columns_of(tables, "spans", "id")["id"], said) >= 0).any())


def links(tables: Tables) -> Answer:
    """Answer for the communication by link, which a source may give by itself."""
    return _or_unknown(sure=bool(communication(tables)), possible=has_rows(tables, "links"))


def blocks(tables: Tables) -> Answer:
    """Answer for the blocks of memory that were taken."""
    return bool((columns_of(tables, "allocations", "bytes")["bytes"] > 0).any())


def memory(tables: Tables) -> Answer:
    """Answer for memory over time, which an allocator's events or counters tell."""
    lanes = ("counter" in set(track_kinds(tables).values())) and has_rows(tables, "counters")
    return _or_unknown(sure=recorded(tables, "allocations") and not lanes, possible=True)
