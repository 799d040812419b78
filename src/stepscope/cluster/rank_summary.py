"""What the analysis of a job needs of one rank, in at most 100 KB: written once, read by every merge.

A summary holds the rank's rows of the tables of :data:`~stepscope.cluster.job_tables.JOB_SCHEMA`. Columns of numbers
are differences in the narrowest type that holds them, compressed; texts are kept once.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.clock.message_peers import with_peers
from stepscope.cluster.job_tables import JOB_SCHEMA, JobTables, conform, empty
from stepscope.trace.losses import CATALOGUE

Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

#: Most bytes of a rank's ``summary.json``; what the printed summary takes of them is left free.
LIMIT, _LEFT_FREE = 100_000, 16_000
#: What stands for null among integers.
NULL = np.iinfo(np.int64).min
#: Tables whose rows are kept as columns; the others have few rows.
_IN_COLUMNS = ("steps", "collectives", "operators", "functions", "events")
#: Columns near another one of their table, of which the difference is kept.
_NEAR = {"launch": "ts", "exposed": "dur", "computing": "dur", "cpu": "dur"}
_TEXTS = ("text", "category")
#: Types of numbers, the narrowest first, and what each holds.
_NARROW = [(np.dtype(kind), int(np.iinfo(kind).min), int(np.iinfo(kind).max)) for kind in (np.int8, np.int16, np.int32)]
_WIDE = np.dtype(np.int64)
#: Name in the catalogue of losses for steps that a summary has no room for.
CUT = "summary_cut"


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts: the place of each row's text among the distinct ones, −1 for null."""

    codes: Integers
    pool: Sequence[str]


ColumnValues: TypeAlias = "Integers | Texts"


@dataclass(frozen=True, eq=False)
class RankSummary:
    """One rank's rows of the tables of a job.

    Attributes:
        rank: Rank in the job.
        facts: Its row of ``ranks``, without what is null.
        groups: Its process groups, rows of ``groups``; ``id`` is the number that its collectives name.
        losses: What was lost: name, count and severity.
        columns: Table → column → values, without columns that are null everywhere. :data:`NULL` stands for null.
    """

    rank: int
    facts: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]] = ()
    losses: Sequence[tuple[str, int, str]] = ()
    columns: Mapping[str, Mapping[str, ColumnValues]] = field(default_factory=dict)

    def height(self, table: str) -> int:
        """Return the number of rows of a table that is kept as columns."""
        for values in self.columns.get(table, {}).values():
            return len(values.codes if isinstance(values, Texts) else values)
        return 0


class _Packed(msgspec.Struct, array_like=True):
    """A column: the type of its numbers, whether they are differences, which rows are not null, and the numbers."""

    dtype: str
    differences: bool
    valid: bytes
    numbers: bytes
    pool: list[str] | None = None


class _Content(msgspec.Struct):
    """A summary as it is written; ``columns`` is base64 of compressed MessagePack."""

    rank: int
    facts: dict[str, Any]
    groups: list[dict[str, Any]]
    losses: list[tuple[str, int, str]]
    heights: dict[str, int]
    columns: str


_COLUMNS = msgspec.msgpack.Decoder(dict[str, dict[str, _Packed]])
_CONTENT = msgspec.json.Decoder(_Content)


def encode(summary: RankSummary, limit: int = LIMIT - _LEFT_FREE) -> bytes:
    """Return a summary as JSON of at most ``limit`` bytes.

    What is too much is left out by whole steps, the last ones first, and is a row of ``losses`` (:data:`CUT`); of a
    single step, or without steps, by the time at which a collective starts.
    """
    content = _encoded(summary)
    if len(content) <= limit:
        return content
    ends = _ends(summary)
    most, least, best = len(ends) - 1, 0, b""  # the last end leaves nothing out
    while least < most:
        middle = (least + most) // 2
        content = _encoded(until(summary, int(ends[middle])))
        if len(content) <= limit:
            least, best = middle + 1, content
        else:
            most = middle
    return best or _encoded(until(summary, int(ends[0])))


def _ends(summary: RankSummary) -> Integers:
    """Return the times at which a summary can be cut: ends of steps, before the first of them starts of collectives."""
    steps, ts = summary.columns.get("steps", {}), summary.columns.get("collectives", {}).get("ts")
    ends = np.sort(_numbers(steps["ts"]) + _numbers(steps["dur"])) if steps else np.empty(0, np.int64)
    starts = np.unique(_numbers(ts)) if ts is not None else np.empty(0, np.int64)
    return np.concatenate((starts[starts < ends[0]] if len(ends) else starts, ends))


def until(summary: RankSummary, end: int) -> RankSummary:
    """Return what a summary says of the time before ``end``, ns: the steps, collectives and events that start there."""
    columns = {"functions": summary.columns.get("functions", {})}
    kept: set[int] = set()
    for table in ("steps", "collectives", "events", "operators"):
        values = summary.columns.get(table, {})
        if not values:
            continue
        rows = (
            np.isin(_numbers(values["step"]), [*kept, NULL]) if table == "operators" else _numbers(values["ts"]) < end
        )
        columns[table] = {name: _taken(column, rows) for name, column in values.items()}
        if table == "steps":
            kept = set(_numbers(columns[table]["step"]).tolist())
    left_out = summary.height("steps") - len(kept)
    losses = [*summary.losses, (CUT, max(1, left_out), CATALOGUE[CUT][0])]
    return replace(summary, facts={**summary.facts, "kept_until": end}, columns=columns, losses=losses)


def _taken(column: ColumnValues, rows: Mask) -> ColumnValues:
    return Texts(column.codes[rows], column.pool) if isinstance(column, Texts) else column[rows]


def _numbers(column: ColumnValues) -> Integers:
    return column.codes if isinstance(column, Texts) else column


def _encoded(summary: RankSummary) -> bytes:
    packed = {
        table: {name: _pack(name, values) for name in values} for table, values in summary.columns.items() if values
    }
    columns = zlib.compress(msgspec.msgpack.encode(packed), 6)
    return msgspec.json.encode(
        _Content(
            summary.rank,
            dict(summary.facts),
            [dict(group) for group in summary.groups],
            list(summary.losses),
            {table: summary.height(table) for table in packed},
            base64.b64encode(columns).decode(),
        )
    )


def _pack(name: str, table: Mapping[str, ColumnValues]) -> _Packed:
    column = table[name]
    if isinstance(column, Texts):
        used, codes = np.unique(column.codes, return_inverse=True)
        pool = [column.pool[code] for code in used.tolist() if code >= 0]
        numbers, valid = codes - int(used[:1].sum() < 0 if len(used) else 0), np.ones(len(codes), np.bool_)
    else:
        pool, valid = None, column != NULL
        near = table.get(_NEAR.get(name, ""))
        numbers = (_numbers(near)[valid] - column[valid]) if near is not None else column[valid]
    dtype, differences = _narrowest(numbers), False
    if dtype.itemsize > 1:
        steps = np.diff(numbers, prepend=0)
        of_steps = _narrowest(steps)
        if differences := of_steps.itemsize < dtype.itemsize:
            numbers, dtype = steps, of_steps
    narrow = numbers.astype(dtype)
    # Bytes of one significance beside each other compress better.
    shuffled = narrow.view(np.uint8).reshape(len(narrow), narrow.itemsize).T.tobytes()
    return _Packed(narrow.dtype.str, differences, b"" if valid.all() else np.packbits(valid).tobytes(), shuffled, pool)


def _narrowest(numbers: Integers) -> np.dtype[Any]:
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    for dtype, least, most in _NARROW:
        if least <= low and high <= most:
            return dtype
    return _WIDE


def decode(content: bytes) -> RankSummary:
    """Return the summary that :func:`encode` wrote.

    Raises:
        ValueError: It is damaged.
    """
    try:
        said = _CONTENT.decode(content)
        packed = _COLUMNS.decode(zlib.decompress(base64.b64decode(said.columns)))
        columns: dict[str, dict[str, ColumnValues]] = {}
        for table, values in packed.items():
            found = columns.setdefault(table, {})
            for name in sorted(values, key=lambda one: one in _NEAR):  # after the columns that they are near
                found[name] = _unpacked(values[name], said.heights[table], found.get(_NEAR.get(name, "")))
    except (zlib.error, KeyError, TypeError, msgspec.DecodeError) as error:
        message = f"a summary is damaged: {error}"
        raise ValueError(message) from None
    return RankSummary(said.rank, said.facts, said.groups, said.losses, columns)


def _unpacked(packed: _Packed, height: int, near: ColumnValues | None) -> ColumnValues:
    dtype = np.dtype(packed.dtype)
    numbers = np.frombuffer(packed.numbers, np.uint8).reshape(dtype.itemsize, -1).T.copy().view(dtype).reshape(-1)
    values = np.cumsum(numbers, dtype=np.int64) if packed.differences else numbers.astype(np.int64)
    if packed.pool is not None:
        return Texts(values, packed.pool)
    valid = (
        np.unpackbits(np.frombuffer(packed.valid, np.uint8), count=height).astype(np.bool_)
        if packed.valid
        else np.ones(height, np.bool_)
    )
    result = np.full(height, NULL)
    result[valid] = values if near is None else _numbers(near)[valid] - values
    return result


def job_tables(summaries: Iterable[RankSummary]) -> JobTables:
    """Return the tables of a job, from the summaries of its ranks in any order."""
    ordered = _once_a_rank(sorted(summaries, key=lambda one: (one.rank, str(one.facts.get("directory")))))
    rows = pl.DataFrame([{"rank": one.rank, **one.facts} for one in ordered], infer_schema_length=None, strict=False)
    groups, numbers = _united_groups(ordered)
    losses = [(one.rank, *row) for one in ordered for row in one.losses]
    tables = {table: _below_each_other(table, ordered, numbers) for table in _IN_COLUMNS}
    tables["collectives"] = with_peers(tables["collectives"], groups)
    return JobTables(
        ranks=conform("ranks", rows) if ordered else empty("ranks"),
        groups=groups,
        losses=conform("losses", pl.DataFrame(losses, schema=empty("losses").schema, orient="row")),
        **tables,
    )


def _once_a_rank(ordered: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the summaries; of several readable ones of a rank, one counts, and the others keep what they say it is."""
    counted: dict[int, RankSummary] = {}
    for one in ordered:
        if "fault" not in one.facts and (one.rank not in counted or one.facts.get("directory") == f"rank{one.rank}"):
            counted[one.rank] = one
    names = {rank: one.facts.get("directory") for rank, one in counted.items()}
    return [
        one
        if "fault" in one.facts or one is counted[one.rank]
        else RankSummary(one.rank, {**one.facts, "fault": f"{names[one.rank]} is rank {one.rank}, and counts."})
        for one in ordered
    ]


def _below_each_other(
    table: str, summaries: Sequence[RankSummary], groups: Mapping[tuple[int, int], int]
) -> pl.DataFrame:
    full = [(place, one) for place, one in enumerate(summaries) if one.height(table)]
    if not full:
        return empty(table)
    heights = [one.height(table) for _, one in full]
    columns = [pl.Series("rank", np.repeat([one.rank for _, one in full], heights))]
    for name in (column.name for column in JOB_SCHEMA[table].columns[1:]):
        of_ranks = [one.columns[table].get(name) for _, one in full]
        if all(values is None for values in of_ranks):
            continue
        texts: dict[str, int] | None = _text_pool(of_ranks) if JOB_SCHEMA[table].column(name).dtype in _TEXTS else None
        parts = []
        for (place, _), values, height in zip(full, of_ranks, heights, strict=True):
            if values is None:
                parts.append(np.full(height, NULL))
            elif isinstance(values, Texts) and texts is not None:
                known = np.array([*(texts[text] for text in values.pool), NULL])  # a code of −1 is the last
                parts.append(known[values.codes])
            elif name == "group":
                parts.append(_renumbered(_numbers(values), place, groups))
            else:
                parts.append(_numbers(values))
        numbers = pl.Series(name, np.concatenate(parts))
        if texts is not None:
            numbers = pl.Series(name, list(texts), pl.String)[numbers.set(numbers == NULL, None).cast(pl.UInt32)]
        columns.append(numbers if texts is not None else numbers.set(numbers == NULL, None))
    return conform(table, pl.DataFrame(columns))


def _text_pool(of_ranks: Sequence[ColumnValues | None]) -> dict[str, int]:
    texts: dict[str, int] = {}
    for values in of_ranks:
        for text in values.pool if isinstance(values, Texts) else ():
            texts.setdefault(text, len(texts))
    return texts


def _renumbered(values: Integers, place: int, groups: Mapping[tuple[int, int], int]) -> Integers:
    own = np.unique(values)
    known = np.array([groups.get((place, int(number)), NULL) for number in own])
    return known[np.searchsorted(own, values)]


def _united_groups(summaries: Sequence[RankSummary]) -> tuple[pl.DataFrame, dict[tuple[int, int], int]]:
    """Return the table of groups, and the number there of each group of each summary, by its place.

    A group is known by name and ranks, as groups of different ranks may have one name. A rank that does not say the
    ranks means the one group of that name that it is in, if there is one.
    """
    known: dict[tuple[str | None, tuple[int, ...] | None], dict[str, Any]] = {}
    by_name: dict[str | None, list[tuple[int, ...]]] = {}
    for one in summaries:
        for group in one.groups:
            if group.get("ranks") and tuple(group["ranks"]) not in by_name.setdefault(group.get("name"), []):
                by_name[group.get("name")].append(tuple(group["ranks"]))
    numbers: dict[tuple[int, int], int] = {}
    for place, one in enumerate(summaries):
        for group in one.groups:
            name, ranks = group.get("name"), tuple(group["ranks"]) if group.get("ranks") else None
            if ranks is None:
                possible = [members for members in by_name.get(name, []) if one.rank in members]
                ranks = possible[0] if len(possible) == 1 else None
            row = known.setdefault((name, ranks), {"id": len(known), "name": name, "ranks": ranks})
            for fact in ("size", "description", "transport"):
                if row.get(fact) is None:
                    row[fact] = group.get(fact)
            numbers[place, group["id"]] = row["id"]
    rows = [{**row, "ranks": None if row["ranks"] is None else list(row["ranks"])} for row in known.values()]
    return conform("groups", pl.DataFrame(rows, schema_overrides=empty("groups").schema)) if rows else empty(
        "groups"
    ), numbers
