"""Communication under Ascend's names, and the two communication files in the form that Ascend's tools can add up.

Those tools add numbers without looking: they stop at ``null``, at links to an unknown rank, and at ranks that name one
operation differently. So every number is present here; ``docs/ascend-definitions.md`` says what replaces the unknown.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from stepscope.analyse.communication.collective_times import LINKS, MEGABYTE, CollectiveCall, operations
from stepscope.trace.ascend_columns import COMMUNICATION_TIMES
from stepscope.trace.tables import Tables

#: Operation as sources call it, without its underscores → as HCCL calls it. Others keep their name.
_OPERATIONS: dict[str, str] = {
    "allreduce": "allReduce",
    "allgather": "allGather",
    "reducescatter": "reduceScatter",
    "alltoall": "alltoAll",
    "isend": "send",
    "recv": "receive",
    "irecv": "receive",
}
#: ``place`` of an operation that has a row of its own in the matrix.
_ITSELF = "one"
#: Name that HCCL gives an operation; number that it gives a group.
_HCCL = re.compile(r"hcom_\w+?__\d+_\d+_\d+")
_KEY = re.compile(r"\d{9,20}")
#: Endings of the names of PyTorch's overloads.
_OVERLOAD = re.compile(r"(_base|_coalesced|_into|_tensor|_single|_list)+_?$")


@dataclass(frozen=True)
class Transfer:
    """What an operation moved over a transport; all of it, or its packets of one size.

    Attributes:
        transport: HCCS, RDMA, …
        packet: Size of a packet in bytes; None for packets of all sizes.
        count: Number of packets.
        bytes: Bytes moved.
        transit: Time spent moving them, ns.
        large: Share of large packets.
    """

    transport: str
    packet: int | None
    count: int | None
    bytes: int | None
    transit: int | None
    large: float | None


@dataclass(frozen=True)
class Call:
    """One communication operation of this rank as Ascend's files name it.

    Attributes:
        operation: The operation, times in ns.
        name: ``hcom_allReduce__271_0_1``: operation, last digits of the group, index within its type and group.
        type: ``hcom_allReduce_``.
        group: Key of the group: a number made of its name.
        rank: Index of this rank in the group.
        transfers: What it moved by transport, if the source records that.
    """

    operation: CollectiveCall
    name: str
    type: str
    group: str
    rank: int
    transfers: tuple[Transfer, ...] = ()

    @property
    def end(self) -> int:
        """End in ns."""
        return self.operation.start + self.operation.elapsed


def calls(tables: Tables) -> list[Call]:
    """Return the communication of a rank in order of start."""
    found = operations(tables)
    counted, names, moved = _counted_alike(found), _names(tables, found), _transfers(tables)
    place: Counter[tuple[str, str]] = Counter()
    made = []
    for one in found:
        key, type_ = group_key(one.group), f"hcom_{hccl_name(one.type)}_"
        # Of one type: ranks may begin operations of several types, which run side by side, in another order.
        index = one.number if one.group in counted else place[key, type_]
        place[key, type_] += 1
        name = f"{type_}_{key[-3:]}_{index}_1"
        if _HCCL.fullmatch(names[one.span]):  # HCCL named it itself
            name = names[one.span]
            type_ = f"{name.split('__')[0]}_"
        made.append(Call(one, name, type_, key, local(one, one.rank), moved.get(one.span, ())))
    return made


def _names(tables: Tables, found: Iterable[CollectiveCall]) -> dict[int, str]:
    """Return the names of the operations' spans."""
    wanted = pl.DataFrame({"id": [one.span for one in found]}, schema={"id": pl.Int64}).lazy()
    spans = tables["spans"].select("id", pl.col("name").cast(pl.String))
    return dict(wanted.join(spans, on="id", how="left").collect().iter_rows())


def _transfers(tables: Tables) -> dict[int, tuple[Transfer, ...]]:
    """Return what operations moved, by their spans; not what each of their parts did."""
    rows = tables["transfers"].filter(pl.col("span").is_not_null() & pl.col("link").is_null())
    columns = ("span", pl.col("transport").cast(pl.String), "packet", "count", "bytes", "transit", "large")
    found: dict[int, tuple[Transfer, ...]] = defaultdict(tuple)
    for span, *moved in rows.select(columns).collect().iter_rows():
        found[span] += (Transfer(*moved),)
    return found


def _counted_alike(found: Iterable[CollectiveCall]) -> set[str]:
    """Return the groups whose operations all have a number of their own that is the same on all ranks."""
    numbers: dict[str, list[int | None]] = defaultdict(list)
    for one in found:
        numbers[one.group].append(one.number)
    return {group for group, said in numbers.items() if None not in said and len(set(said)) == len(said)}


def local(one: CollectiveCall, rank: int) -> int:
    """Return a rank's index in the operation's group; the rank itself if the group's ranks are unknown."""
    ranks = group_ranks(one)
    return ranks.index(rank) if rank in ranks else rank


def group_ranks(one: CollectiveCall) -> list[int]:
    """Return the ranks of the operation's group in order; empty if they are unknown."""
    try:
        ranks = json.loads(one.ranks or "[]")
    except ValueError:
        return []
    return sorted(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else []


def hccl_name(operation: str) -> str:
    """Return an operation's name as HCCL writes it: ``all_reduce`` → ``allReduce``."""
    plain = _OVERLOAD.sub("", operation.lower().strip("_")).replace("_", "")
    return _OPERATIONS.get(plain, re.sub(r"\W", "", plain) or "other")


def group_key(name: str) -> str:
    """Return the number of a group's name in communication files: two polynomials of its letters.

    A name that is such a number stays: communication files do not have the name it was made of.
    """
    if _KEY.fullmatch(name):
        return name
    high = low = 0
    for letter in name:
        high = (high * 29 + ord(letter)) & 0xFFFFFFFF
        low = (low * 131 + ord(letter)) & 0xFFFFFFFF
    return str(high << 32 | low)


def parallel_group_info(made: Iterable[Call]) -> dict[str, Any]:
    """Return group → its name, this rank's index in it, and its ranks; of the groups with known ranks."""
    groups: dict[str, Any] = {}
    for call in made:
        ranks = group_ranks(call.operation)
        if ranks:
            name = call.operation.group
            groups[name] = {"group_name": name, "group_rank": call.rank, "global_ranks": ranks}
    return groups


def communication(made: Iterable[Call], *, stepless: bool) -> dict[str, Any]:
    """Return ``step<n>`` → ``p2p`` and ``collective`` → operation → times and bandwidths."""
    document: dict[str, Any] = {}
    for step, found in _by_step(made, stepless=stepless).items():
        sorts = _sorts(found)
        document[step] = {
            sort: {f"{call.name}@{call.group}": _entry([call]) for call in chosen} for sort, chosen in sorts.items()
        }
        total = _entry(sorts["collective"])
        del total["Communication Time Info"]["Start Timestamp(us)"]
        for moved in total["Communication Bandwidth Info"].values():
            del moved["Bandwidth(GB/s)"], moved["Large Packet Ratio"]
        document[step]["collective"]["Total Op Info"] = total
    return document


def communication_matrix(made: Iterable[Call], *, stepless: bool) -> dict[str, Any]:
    """Return ``step<n>`` → ``p2p`` and ``collective`` → ``<type>-<place>@<group>`` → link → size, time, bandwidth.

    A link joins two indices in the group. A collective without recorded links has the link of the rank to itself.
    """
    return {
        step: {sort: _matrix(chosen) for sort, chosen in _sorts(found).items()}
        for step, found in _by_step(made, stepless=stepless).items()
    }


def recorded_matrix(tables: Tables) -> dict[str, Any]:
    """Return the recorded matrix in the form of :func:`communication_matrix`; empty if the source has none."""
    document: dict[str, Any] = {}
    texts = [pl.col(name).cast(pl.String) for name in ("operation", "place", "group", "transport", "name")]
    for row in tables["links"].with_columns(texts).collect().iter_rows(named=True):
        step = document.setdefault(f"step{row['step'] or 0}", {"p2p": {}, "collective": {}})
        place = "" if row["place"] == _ITSELF else f"-{row['place']}"
        entries = step["p2p" if row["point_to_point"] else "collective"]
        cells = entries.setdefault(f"{row['operation']}{place}@{group_key(row['group'])}", {})
        cell = {
            "Transport Type": row["transport"] or "",
            "Transit Size(MB)": (row["bytes"] or 0) / MEGABYTE,
            "Transit Time(ms)": (row["transit"] or 0) / 1e6,
            "Bandwidth(GB/s)": row["bandwidth"] or 0,
        }
        cells[f"{row['source']}-{row['destination']}"] = cell | ({"Op Name": row["name"]} if row["name"] else {})
    return document


def _by_step(made: Iterable[Call], *, stepless: bool) -> dict[str, list[Call]]:
    """Return the calls of each step; those outside every step stand under ``step-1``."""
    found: dict[str, list[Call]] = defaultdict(list)
    for call in made:
        found["step0" if stepless else f"step{call.operation.step}"].append(call)
    return found


def _sorts(found: Iterable[Call]) -> dict[str, list[Call]]:
    sorts: dict[str, list[Call]] = {"p2p": [], "collective": []}
    for call in found:
        sorts["p2p" if call.operation.point_to_point else "collective"].append(call)
    return sorts


def times(found: list[Call]) -> dict[str, float]:
    """Return the times of operations in ms; without recorded transit and wait, all is transit."""
    elapsed = sum(call.operation.elapsed for call in found)
    transit = sum(call.operation.moving for call in found)
    wait = sum(call.operation.wait or 0 for call in found)
    synchronisation = sum(call.operation.synchronisation or 0 for call in found)
    start = min((call.operation.start for call in found), default=0)
    ns = {"ts": start, "dur": elapsed, "transit": transit, "wait": wait, "synchronisation": synchronisation}
    ns["idle"] = elapsed - transit - wait
    return {
        **{one.key: ns[one.ours] / one.parts for one in COMMUNICATION_TIMES},
        "Wait Time Ratio": _ratio(wait, wait + transit),
        "Synchronization Time Ratio": _ratio(synchronisation, synchronisation + transit),
    }


def bandwidths(found: list[Call]) -> dict[str, dict[str, Any]]:
    """Return transport → size (10^6 bytes), time (ms), bandwidth and the distribution of sizes."""
    moved = [one for call in found for one in _moves(call)]
    transports = [*LINKS, *sorted({one.transport for one in moved} - set(LINKS))]
    return {name: _bandwidth([one for one in moved if one.transport == name]) for name in transports}


def _moves(call: Call) -> tuple[Transfer, ...]:
    """Return what an operation moved: as recorded, else all at once."""
    one = call.operation
    if call.transfers:
        return call.transfers
    whole = _whole(one)
    return (whole,) if one.size is None else (whole, replace(whole, packet=one.size, count=1))


def _entry(found: list[Call]) -> dict[str, Any]:
    return {"Communication Time Info": times(found), "Communication Bandwidth Info": bandwidths(found)}


def _bandwidth(moved: list[Transfer]) -> dict[str, Any]:
    sizes: dict[str, list[float]] = {}
    for one in moved:
        if one.packet is not None:
            entry = sizes.setdefault(str(one.packet / MEGABYTE), [0, 0.0])
            entry[0] += one.count or 0
            entry[1] += (one.transit or 0) / 1e6
    whole = [one for one in moved if one.packet is None]
    large = max((one.large or 0 for one in whole), default=0)
    return {**_sum(whole), "Large Packet Ratio": large, "Size Distribution": sizes}


def _sum(moved: list[Transfer]) -> dict[str, Any]:
    known = [one for one in moved if one.bytes is not None]
    size, transit = sum(one.bytes or 0 for one in known), sum(one.transit or 0 for one in known)
    return {
        "Transit Size(MB)": size / MEGABYTE,
        "Transit Time(ms)": sum(one.transit or 0 for one in moved) / 1e6,
        "Bandwidth(GB/s)": _ratio(size, transit),
    }


def _matrix(found: list[Call]) -> dict[str, Any]:
    links: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    for call in found:
        links[matrix_type(call), call.group, link(call)].append(call)
    document: dict[str, Any] = defaultdict(dict)
    for (type_, group, joined), members in links.items():
        speeds = [(one.size or 0) / one.moving if one.moving else 0.0 for one in (call.operation for call in members)]
        ordered = [members[row] for row in sorted(range(len(members)), key=lambda row: -speeds[row])]
        named = {"top1": ordered[0], "middle": ordered[len(ordered) // 2], "bottom1": ordered[-1]}
        named |= {f"bottom{n}": ordered[-n] for n in (2, 3) if n <= len(ordered)}
        for place, call in named.items():
            document[f"{type_}-{place}@{group}"][joined] = {**_link([call]), "Op Name": call.name}
            _own_link(document[f"{type_}-{place}@{group}"], call)
        document[f"{type_}-total@{group}"][joined] = _link(ordered)
    return dict(document)


def matrix_type(call: Call) -> str:
    """Return the operation's name in the matrix: ``allreduce``."""
    return call.type.removeprefix("hcom_").rstrip("_").lower()


def link(call: Call) -> str:
    """Return the link that an operation used, as indices in its group: ``source-destination``."""
    one = call.operation
    source = call.rank if one.source is None else local(one, one.source)
    return f"{source}-{call.rank if one.destination is None else local(one, one.destination)}"


def links(call: Call) -> dict[str, dict[str, Any]]:
    """Return the links of one operation: its own, and an empty one of the rank to itself."""
    cells = {link(call): _link([call])}
    _own_link(cells, call)
    return cells


def _link(found: list[Call]) -> dict[str, Any]:
    """Return the sum of what operations moved over their link."""
    moved = [_whole(call.operation) for call in found]
    return {"Transport Type": moved[0].transport, **_sum(moved)}


def _whole(one: CollectiveCall) -> Transfer:
    """Return all that an operation moved."""
    return Transfer(one.transport, None, None, one.size, one.moving, None)


def _own_link(cells: dict[str, Any], call: Call) -> None:
    """Add an empty link of this rank to itself, from which tools find the rank of an index in the group."""
    nothing = {"Transport Type": "LOCAL", "Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0}
    cells.setdefault(f"{call.rank}-{call.rank}", {**nothing, "Op Name": call.name})


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0
