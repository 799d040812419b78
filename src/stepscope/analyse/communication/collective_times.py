"""Communication by operation and by link, in the structure of the Ascend deliverables.

What a source does not state is ``null``: NCCL and gloo do not say how long an operation waited for the other ranks, and
not over which wire the bytes went. See ``docs/definitions.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.analyse.step.activity import BETWEEN_TWO, on_tracks
from stepscope.trace.tables import Tables, collected, columns_of, has_rows, shared

#: Links of an Ascend device; always listed, which readers of these files expect.
LINKS: tuple[str, ...] = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class MovedBytes:
    """What an operation moved over one transport; ``packet`` is the size of a packet, None for all sizes."""

    transport: str
    packet: int | None
    count: int | None
    bytes: int | None
    transit: int | None


@dataclass(frozen=True)
class CollectiveCall:
    """One communication operation of this rank; times in ns, sizes in bytes, None where the source does not say.

    ``size`` is what the rank puts in, or receives where it puts nothing in. ``span`` is its ``spans.id``, ``ranks`` the
    group's ranks as JSON, ``number`` its index among the group's operations, which all ranks count alike.
    """

    span: int
    step: int
    name: str
    type: str
    group: str
    point_to_point: bool
    start: int
    elapsed: int
    transit: int | None
    wait: int | None
    synchronisation: int | None
    size: int | None
    transport: str
    rank: int
    source: int | None
    destination: int | None
    ranks: str | None
    number: int | None
    moved: tuple[MovedBytes, ...] = ()

    @property
    def label(self) -> str:
        """The operation's key in the files."""
        return f"{self.name}@{self.group}"

    @property
    def moving(self) -> int:
        """Time that counts as moving data: the transit, or all of the operation where that is not known."""
        return self.elapsed if self.transit is None else self.transit


def operations(tables: Tables) -> list[CollectiveCall]:
    """Return the communication of a rank in order of start.

    That is what device streams ran; where they ran none, the calls on host threads, where a call nested in another one
    is part of it. An NPU's profiler names each operation itself.
    """
    outermost = _outermost(tables)
    if not len(outermost):
        return []
    columns = columns_of(tables, "collectives", "span", *_OF_COLLECTIVES)
    said = {span: values for span, *values in columns.rows()}
    tasks = set(columns_of(tables, "tasks", "span")["span"].to_list())
    moved, numbers, found = _moves(tables), Counter[tuple[int, str, str]](), []
    for start, span, elapsed, label, in_step, rank in sorted(outermost.rows()):
        operation, group, transport, synchronisation, ranks, number, put_in, got, *rest = said[span]
        transit, wait, source, destination = rest
        step, type_, group = -1 if in_step is None else in_step, label if operation is None else operation, group or ""
        # A name that tells the operations of a type within a step and group apart.
        name = label if span in tasks else f"{type_}__{numbers[step, type_, group]}"
        numbers[step, type_, group] += 1
        pair = BETWEEN_TWO.match(operation or "") is not None or source is not None or destination is not None
        size = put_in if got is None or (put_in or 0) > 0 else got
        wire = "OTHER" if transport is None else transport.upper()
        found.append(CollectiveCall(
            span, step, name, type_, group, pair, start, elapsed, transit, wait, synchronisation, size, wire, rank,
            source, destination, ranks, number, moved.get(span, ()),
        ))  # fmt: skip
    return found


def _moves(tables: Tables) -> dict[int, tuple[MovedBytes, ...]]:
    """Return for each operation what its source says that it moved, by transport."""
    if not has_rows(tables, "transfers"):
        return {}
    transfers = tables["transfers"].filter(pl.col("span").is_not_null() & pl.col("link").is_null())
    rows = transfers.select("span", pl.col("transport").cast(pl.String), "packet", "count", "bytes", "transit").pipe(
        collected, tables
    )
    found: dict[int, list[MovedBytes]] = {}
    for span, *rest in rows.iter_rows():
        found.setdefault(span, []).append(MovedBytes(*rest))
    return {span: tuple(moved) for span, moved in found.items()}


def _outermost(tables: Tables) -> pl.DataFrame:
    """Return the spans that stand for the collectives on streams, or else for those on host threads."""
    if not has_rows(tables, "collectives"):
        return pl.DataFrame()
    spans = columns_of(tables, "spans", "ts", "id", "dur", "name", "step", "track")
    rows = rows_of(spans["id"], columns_of(tables, "collectives", "span")["span"])
    rows = rows[rows >= 0]
    on_stream = on_tracks(tables, "stream")[rows]
    spans = spans[pl.Series((rows[on_stream] if on_stream.any() else rows).astype(np.uint32))]
    rank_of = dict(columns_of(tables, "tracks", "id", "rank").iter_rows())
    return spans.hstack([pl.Series("rank", [rank_of[track] for track in spans.drop_in_place("track").to_list()])])


_OF_COLLECTIVES = (
    *("operation", "group", "transport", "synchronisation", "group_ranks", "sequence"),
    *("bytes_in", "bytes_out", "transit", "wait", "source", "destination"),
)


def communication(tables: Tables) -> dict[str, Any]:
    """Return ``step<n>`` → ``p2p`` and ``collective`` → operation → its times (ms) and bandwidths.

    Operations outside every step stand under ``step-1``; where the rank has no steps, under ``step0``.
    """
    document: dict[str, Any] = {}
    for step, found in _by_step(tables).items():
        document[step] = {sort: {one.label: _entry([one]) for one in chosen} for sort, chosen in _sorts(found).items()}
        total = _entry(_sorts(found)["collective"])
        del total["Communication Time Info"]["Start Timestamp(us)"]
        document[step]["collective"]["Total Op Info"] = total
    return document


def communication_matrix(tables: Tables) -> dict[str, Any]:
    """Return ``step<n>`` → ``p2p`` and ``collective`` → ``<type>-<position>@<group>`` → link → figures.

    The figures are size, time and bandwidth. The positions are those of the operations ordered by bandwidth: top1,
    middle, bottom3 to bottom1, and total over all.
    A link is ``source-destination``; where the links of a collective are not known, it has the one link ``rank-*``.
    """
    return _given_matrix(tables) or {
        step: {sort: _matrix(chosen) for sort, chosen in _sorts(found).items()}
        for step, found in _by_step(tables).items()
    }


def _given_matrix(tables: Tables) -> dict[str, Any]:
    """Return the matrix as the source gives it; empty if it does not."""
    document: dict[str, Any] = {}
    if not has_rows(tables, "links"):
        return document
    texts = pl.col("operation", "place", "group", "transport", "name").cast(pl.String)
    for row in tables["links"].with_columns(texts).pipe(collected, tables).iter_rows(named=True):
        step = document.setdefault(f"step{row['step'] or 0}", {"p2p": {}, "collective": {}})
        label = row["operation"] if row["place"] == "one" else f"{row['operation']}-{row['place']}"
        links = step["p2p" if row["point_to_point"] else "collective"].setdefault(f"{label}@{row['group']}", {})
        links[f"{row['source']}-{row['destination']}"] = {
            "Transport Type": row["transport"],
            "Transit Size(MB)": None if row["bytes"] is None else row["bytes"] / MEGABYTE,
            "Transit Time(ms)": _ms(row["transit"]),
            "Bandwidth(GB/s)": row["bandwidth"],
            **({"Op Name": row["name"]} if row["name"] else {}),
        }
    return document


@shared
def _by_step(tables: Tables) -> dict[str, list[CollectiveCall]]:
    stepless = not len(columns_of(tables, "steps", "number"))
    found: dict[str, list[CollectiveCall]] = {}
    for one in operations(tables):
        found.setdefault("step0" if stepless else f"step{one.step}", []).append(one)
    return found


def _sorts(found: Iterable[CollectiveCall]) -> dict[str, list[CollectiveCall]]:
    sorts: dict[str, list[CollectiveCall]] = {"p2p": [], "collective": []}
    for one in found:
        sorts["p2p" if one.point_to_point else "collective"].append(one)
    return sorts


def _entry(found: list[CollectiveCall]) -> dict[str, Any]:
    return {"Communication Time Info": _times(found), "Communication Bandwidth Info": _bandwidths(found)}


def _times(found: list[CollectiveCall]) -> dict[str, Any]:
    elapsed, transit = sum(one.elapsed for one in found), _sum(one.transit for one in found)
    wait, synchronisation = _sum(one.wait for one in found), _sum(one.synchronisation for one in found)
    idle = None if transit is None or wait is None else elapsed - transit - wait
    return {
        "Start Timestamp(us)": min((one.start for one in found), default=0) / 1000,
        "Elapse Time(ms)": elapsed / 1e6,
        "Transit Time(ms)": _ms(transit),
        "Wait Time(ms)": _ms(wait),
        "Synchronization Time(ms)": _ms(synchronisation),
        "Idle Time(ms)": _ms(idle),
        "Wait Time Ratio": _ratio(wait, transit),
        "Synchronization Time Ratio": _ratio(synchronisation, transit),
    }


def _bandwidths(found: list[CollectiveCall]) -> dict[str, Any]:
    given: dict[str, list[MovedBytes]] = {}
    other: dict[str, list[CollectiveCall]] = {}
    for one in found:
        for move in one.moved:
            given.setdefault(move.transport, []).append(move)
        if not one.moved:
            other.setdefault(one.transport, []).append(one)
    transports = [*LINKS, *sorted(({*given, *other}) - {*LINKS})]
    return {
        name: _given_bandwidth(given[name]) if name in given else _bandwidth(other.get(name, [])) for name in transports
    }


def _given_bandwidth(moved: list[MovedBytes]) -> dict[str, Any]:
    """Return size, time, bandwidth and packets of one transport as the source gives them, summed up."""
    whole = [move for move in moved if move.packet is None]
    size, time = sum(move.bytes or 0 for move in whole), sum(move.transit or 0 for move in whole)
    packets = ((move.packet, move.count or 0, move.transit or 0) for move in moved)
    return {
        "Transit Size(MB)": size / MEGABYTE,
        "Transit Time(ms)": time / 1e6,
        "Bandwidth(GB/s)": round(size / time, 4) if time else 0,
        "Large Packet Ratio": 0,
        "Size Distribution": _distribution(packets),
    }


def _bandwidth(found: list[CollectiveCall]) -> dict[str, Any]:
    sizes = _distribution((one.size, 1, one.moving) for one in found)
    return {**_moved(found), "Large Packet Ratio": 0, "Size Distribution": sizes}


def _distribution(packets: Iterable[tuple[int | None, int, int]]) -> dict[str, list[float]]:
    """Return count and time (ms) by size (MB), of sizes in bytes that are known, counts and times in ns."""
    sizes: dict[str, list[float]] = {}
    for size, count, time in packets:
        if size is not None:
            entry = sizes.setdefault(f"{size / MEGABYTE}", [0, 0.0])
            entry[0] += count
            entry[1] += time / 1e6
    return sizes


def _moved(found: list[CollectiveCall]) -> dict[str, Any]:
    """Return size, time and bandwidth; size and bandwidth are null if no operation's size is known."""
    known = [one for one in found if one.size is not None] if found else []
    size, time = sum(one.size or 0 for one in known), sum(one.moving for one in found)
    unknown = bool(found) and not known
    moving = sum(one.moving for one in known)
    return {
        "Transit Size(MB)": None if unknown else size / MEGABYTE,
        "Transit Time(ms)": time / 1e6,
        "Bandwidth(GB/s)": None if unknown else round(size / moving, 4) if moving else 0,
    }


def _matrix(found: list[CollectiveCall]) -> dict[str, Any]:
    links: dict[tuple[str, str, str], list[CollectiveCall]] = {}
    for one in found:
        links.setdefault((one.type, one.group, _link(one)), []).append(one)
    document: dict[str, Any] = {}
    for (type_, group, link), members in links.items():
        ordered = sorted(members, key=lambda one: -_speed(one))
        for position, one in _extremes(ordered).items():
            entry = {"Transport Type": one.transport, **_moved([one]), "Op Name": one.name}
            document.setdefault(f"{type_}-{position}@{group}", {})[link] = entry
        total = {"Transport Type": ordered[0].transport, **_moved(ordered)}
        document.setdefault(f"{type_}-total@{group}", {})[link] = total
    return document


def _link(one: CollectiveCall) -> str:
    if one.source is None and one.destination is None:
        return f"{one.rank}-*"
    source = one.rank if one.source is None else one.source
    return f"{source}-{one.rank if one.destination is None else one.destination}"


def _speed(one: CollectiveCall) -> float:
    return (one.size or 0) / one.moving if one.moving else 0.0


def _extremes(ordered: list[CollectiveCall]) -> dict[str, CollectiveCall]:
    """Return the operations that the matrix names, of a list ordered by falling bandwidth."""
    places = {"top1": ordered[0], "middle": ordered[len(ordered) // 2], "bottom1": ordered[-1]}
    return places | {f"bottom{n}": ordered[-n] for n in (2, 3) if n <= len(ordered)}


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ms(value: int | None) -> float | None:
    return None if value is None else value / 1e6


def _ratio(part: int | None, transit: int | None) -> float | None:
    """Return ``part / (part + transit)``, the ratios of the Ascend deliverables."""
    if part is None or transit is None:
        return None
    return round(part / (part + transit), 4) if part + transit else 0.0
