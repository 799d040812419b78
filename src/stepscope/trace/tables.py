"""The tables of a rank as Polars frames: made, conformed to the schema, written and scanned.

A set of tables is a plain mapping from table name to frame in which every table of the schema is present, empty where
the source has nothing for it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import StepscopeError
from stepscope.trace.run_directory import make_private, replacing, size_and_sum, write_atomically
from stepscope.trace.schema import ENUMS, NOT_RECORDED, STATED, STEPS_OF_DEVICE, TABLES, TOTALS, Table

#: What readers return: every table, in memory.
Frames: TypeAlias = dict[str, pl.DataFrame]
#: What analyses take: every table, lazily.
Tables: TypeAlias = Mapping[str, pl.LazyFrame]
#: Size in bytes and CRC32 of files, by name.
Sums: TypeAlias = dict[str, tuple[int, int]]

_T = TypeVar("_T")

#: A Parquet file of up to so many bytes is read whole: several scans of it would cost more.
_SMALL = 1 << 18
#: Up to so many rows, the fixed cost of a plan is more than that of the rows: frames are written together.
_FEW_ROWS = 1 << 16
#: Above this number of spans, what analyses share is not kept for long.
_MANY_ROWS = 1 << 21
_PLAIN = pl.QueryOptFlags.none()
_PHYSICAL = pl.all().to_physical()
#: A name of more characters is shown with so many of its first ones: a file has a name in every row.
_LONG_NAME, _SHOWN = 4096, 1000
#: Tables with names, which a source may give by the thousand and the megabyte.
_WITH_NAMES = tuple(
    table.name for table in TABLES.values() if "name" in {c.name for c in table.columns if c.dtype == "category"}
)

#: What timelines call the columns of details, by table: (argument, column, form), for those that write them and for who
#: reads them back. `json` is text that holds JSON already.
ARGUMENTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "operators": (
        ("External id", "external", "integer"), ("Input Dims", "shapes", "json"), ("Input type", "dtypes", "json"),
        ("Input Strides", "strides", "json"), ("Concrete Inputs", "concrete", "json"),
        ("Module Hierarchy", "module", "text"), ("Fwd thread id", "forward_thread", "integer"),
        ("flops", "flops", "integer"), ("Call stack", "stack", "text"),
    ),
    "kernels": (
        ("External id", "external", "integer"), ("device", "device", "integer"), ("context", "context", "integer"),
        ("stream", "stream", "integer"), ("registers per thread", "registers", "integer"),
        ("shared memory", "shared_memory", "integer"), ("blocks per SM", "blocks_per_sm", "float"),
        ("warps per SM", "warps_per_sm", "float"), ("grid", "grid", "json"), ("block", "block", "json"),
        ("est. achieved occupancy %", "occupancy", "float"), ("bytes", "bytes", "integer"),
        ("memory bandwidth (GB/s)", "bandwidth", "float"), ("graph id", "graph", "integer"),
        ("graph node id", "graph_node", "integer"), ("stream priority", "priority", "integer"),
    ),
    "collectives": (
        ("Collective name", "operation", "text"), ("Process Group Name", "group", "text"),
        ("Process Group Ranks", "group_ranks", "json"), ("Group size", "group_size", "integer"),
        ("dtype", "dtype", "text"), ("bytes in", "bytes_in", "integer"), ("bytes out", "bytes_out", "integer"),
        ("Src Rank", "source", "integer"), ("Dst Rank", "destination", "integer"), ("transport", "transport", "text"),
        ("Seq", "sequence", "integer"),
    ),
    "arguments": (("arguments", "arguments", "json"),),
}  # fmt: skip

FRAME = pl.Struct({"file": pl.String, "line": pl.Int64, "function": pl.String})

_DTYPES: dict[str, pl.DataType] = {
    "int64": pl.Int64(),
    "int32": pl.Int32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "text": pl.String(),
    "category": pl.Categorical(),
    "list[int64]": pl.List(pl.Int64),
    "list[frame]": pl.List(FRAME),
    **{f"enum:{name}": pl.Enum(values) for name, values in ENUMS.items()},
}


def dtype(name: str) -> pl.DataType:
    """Return the Polars type of a schema type such as ``int64`` or ``enum:kind``."""
    return _DTYPES[name]


@cache
def schema(table: str) -> Mapping[str, pl.DataType]:
    """Return column names and Polars types of a table, in order."""
    return MappingProxyType({column.name: dtype(column.dtype) for column in TABLES[table].columns})


@cache
def empty(table: str) -> pl.DataFrame:
    """Return the table without rows: always the same frame, which must not be changed in place."""
    return pl.DataFrame(schema=schema(table))


def conform(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``frame`` with exactly the table's columns, order and types.

    Columns that may be null are added where they are missing. Types are cast.

    Raises:
        StepscopeError: A column is missing that may not be null, is unknown, or holds null where it may not.
    """
    if frame is empty(table):
        return frame
    wanted = schema(table)
    if not frame.height or frame.columns != list(wanted) or frame.dtypes != list(wanted.values()):
        frame = _conformed(table, frame)
    _refuse_nulls(TABLES[table], frame)
    return frame


def _conformed(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    _refuse_other_columns(TABLES[table], frame.columns)
    if not frame.height:
        return empty(table)
    absent = schema(table).keys() - frame.columns
    if absent and frame.height > _FEW_ROWS:  # these literals take no memory
        frame = frame.with_columns_seq(pl.lit(None, schema(table)[name]).alias(name) for name in absent)
        absent = set()
    columns = []
    for name, kind in schema(table).items():
        if name in absent:
            columns.append(_null(name, kind).new_from_index(0, frame.height))
        else:
            column = frame.get_column(name)
            columns.append(column if column.dtype == kind else column.cast(kind))
    return of_columns(columns)


def of_columns(columns: Sequence[pl.Series]) -> pl.DataFrame:
    """Return columns of one length as a frame; as ``pl.DataFrame`` does, at a third of its cost."""
    return columns[0].to_frame().hstack(list(columns[1:]))


def taken(frame: pl.DataFrame, places: pl.Series) -> pl.DataFrame:
    """Return the rows at places; as ``frame[places]`` does, which hands its columns to threads.

    To wake these costs more than to take few rows, and on a busy machine they come late.

    Args:
        frame: The table.
        places: Numbers of rows, unsigned; null for a row of nulls.
    """
    if len(places) > _FEW_ROWS:
        return frame[places]
    return of_columns([column[places] for column in frame.iter_columns()])


def of_arrays(columns: Mapping[str, pl.Series | npt.NDArray[Any]]) -> pl.DataFrame:
    """Return columns of one length, by name, as a frame; see :func:`of_columns`.

    A Series costs more than to fill it: short arrays of one type become slices of one.
    """
    made = {name: values for name, values in columns.items() if isinstance(values, pl.Series)}
    of_types: dict[np.dtype[Any], dict[str, npt.NDArray[Any]]] = {}
    for name, values in columns.items():
        if not isinstance(values, pl.Series):
            of_types.setdefault(values.dtype, {})[name] = values
    for arrays in of_types.values():
        height = len(next(iter(arrays.values())))
        if height <= _FEW_ROWS:
            whole = pl.Series(np.concatenate(list(arrays.values())))
            made.update((name, whole.slice(place * height, height)) for place, name in enumerate(arrays))
        else:
            made.update((name, pl.Series(values)) for name, values in arrays.items())
    return of_columns([made[name].alias(name) for name in columns])


@cache
def _null(name: str, kind: pl.DataType) -> pl.Series:
    return pl.Series(name, [None], kind)


def codes(*columns: pl.Series) -> list[npt.NDArray[Any]]:
    """Return the numbers of categorical texts, or of values of an enumeration, of each column; −1 for null."""
    return [_or_negative(one) for one in of_columns(columns).select_seq(_PHYSICAL).get_columns()]


def _or_negative(numbers: pl.Series) -> npt.NDArray[Any]:
    values = numbers.to_numpy()  # with nulls reals, in which numbers of 32 bits are exact and null is NaN
    return np.nan_to_num(values, nan=-1).astype(np.int64) if numbers.null_count() else values


def _refuse_other_columns(table: Table, given: Collection[str]) -> None:
    unknown = set(given) - set(schema(table.name))
    if unknown:
        _refuse(f"Table {table.name} has no column {', '.join(sorted(unknown))}.")
    for column in table.columns:
        if column.name not in given and not column.nullable:
            _refuse(f"Table {table.name} lacks the column {column.name}.")


def _refuse_nulls(table: Table, frame: pl.DataFrame) -> None:
    for column in table.columns:
        if not column.nullable and (nulls := frame.get_column(column.name).null_count()):
            _refuse(f"Column {column.name} of table {table.name} holds {nulls} nulls.")


def _refuse(message: str) -> NoReturn:
    raise StepscopeError(message, "This is a defect of the reader: please report it.")


def is_derived_fact() -> pl.Expr:
    """Return whether a row of ``metadata`` says what a reader found out, and not what the source holds as a fact."""
    return pl.col("key").is_in([TOTALS, NOT_RECORDED, STEPS_OF_DEVICE]) | pl.col("key").str.starts_with(STATED)


_UNKNOWN = "not recorded: "


def label_of(tables: Tables) -> str:
    """Return how a timeline labels the process of which parts of a step were not recorded; empty if all were."""
    parts = json.loads(facts(tables).get(NOT_RECORDED, "[]"))
    return f"{_UNKNOWN}{', '.join(parts)}" if parts else ""


def labelled(label: str) -> dict[str, str]:
    """Return the fact that such a label tells; none of another label."""
    parts = label.removeprefix(_UNKNOWN).split(", ")
    return {NOT_RECORDED: json.dumps(parts)} if label.startswith(_UNKNOWN) else {}


def complete(frames: Mapping[str, pl.DataFrame]) -> Frames:
    """Return all tables of the schema: those given, conformed; the others empty."""
    return {name: conform(name, frames[name]) if name in frames else empty(name) for name in TABLES}


def together(table: str, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of frames of one table behind each other; those without rows cost nothing.

    They may have other columns than the schema's, of one type wherever they occur.
    """
    full = [frame for frame in frames if frame.height]
    if not full:
        return empty(table)
    return full[0] if len(full) == 1 else pl.concat([typed(table, frame) for frame in full], how="diagonal_relaxed")


def with_series(frame: pl.DataFrame, columns: Iterable[pl.Series]) -> pl.DataFrame:
    """Return a frame with columns in place of those of their names, or behind the others; this needs no plan."""
    places, result, further = frame.columns, frame.clone(), []
    for column in columns:
        if column.name in places:
            result.replace_column(places.index(column.name), column)
        else:
            further.append(column)
    return result.hstack(further) if further else result


def typed(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame whose columns have the schema's types, as far as they are the schema's."""
    wanted = schema(table)
    casts = [
        pl.col(name).cast(wanted[name])
        for name, given in zip(frame.columns, frame.dtypes, strict=True)
        if name in wanted and given != wanted[name]
    ]
    return frame.with_columns(casts) if casts else frame


@cache
def empty_lazily(table: str) -> pl.LazyFrame:
    """Return the table without rows as analyses take it: always the same frame, by which they can tell."""
    return empty(table).lazy()


def has_rows(tables: Tables, name: str) -> bool:
    """Return whether a table may have rows; False where it is known to have none."""
    return tables[name] is not empty_lazily(name)


class RankTables(dict[str, pl.LazyFrame]):
    """Every table of a rank, lazily; with those that are in memory, and what several analyses need of them.

    Attributes:
        in_memory: Tables that need no plan to be collected, by name.
        small: Whether every table is in memory and short.
        large: Whether what analyses share of them is not kept for long: an array of one of its columns is tens of MB.
        files: Parquet files that hold the rows of tables as they are, by name.
        shared: What functions marked by :func:`shared` returned for these tables.
    """

    def __init__(self, found: Mapping[str, pl.LazyFrame], in_memory: Mapping[str, pl.DataFrame]) -> None:
        super().__init__(found)
        self.in_memory = in_memory
        full = (name for name in found if found[name] is not empty_lazily(name))
        self.small = all(name in in_memory and in_memory[name].height <= _FEW_ROWS for name in full)
        spans = in_memory.get("spans", empty("spans"))
        self.large = spans.height > _MANY_ROWS or ("spans" in found and "spans" not in in_memory)
        self.files: dict[str, Path] = {}
        self.shared: dict[Callable[..., Any], Any] = {}


def lazy(frames: Mapping[str, pl.DataFrame]) -> RankTables:
    """Return the tables as analyses take them."""
    found = {name: frame.lazy() if frame.height else empty_lazily(name) for name, frame in frames.items()}
    return RankTables(found, frames)


def long_names(names: pl.Series) -> list[str]:
    """Return the distinct names of a column that are too long to be shown whole, in order of the alphabet."""
    return sorted(name for name in names.unique().to_list() if name is not None and len(name) > _LONG_NAME)


def count_long_names(frames: Mapping[str, pl.DataFrame], of_spans: Iterable[str]) -> int:
    """Return how many distinct names, of ``spans`` and the other tables, :func:`with_short_names` would shorten."""
    columns = (frames[name]["name"] for name in _WITH_NAMES if name != "spans")
    columns = (column for column in columns if column.null_count() < len(column))
    others = (name for column in columns for name in long_names(column))
    return len({*others, *(name for name in of_spans if len(name) > _LONG_NAME)})


def with_short_names(tables: Tables) -> Tables:
    """Return the tables as files and analyses show them: a name of more than 4,096 characters is shortened.

    It becomes its first 1,000 characters, and in brackets how many it has and the first digits of its SHA-256, so that
    it stays distinct. Other tables, and tables without such a name, are those given.
    """
    found = dict(tables)
    in_memory = dict(tables.in_memory) if isinstance(tables, RankTables) else {}
    for table in (name for name in _WITH_NAMES if has_rows(tables, name)):
        names = long_names(columns_of(tables, table, "name")["name"])
        if not names:
            continue
        kind = schema(table)["name"]
        short = pl.DataFrame({"name": names, "short": map(_short, names)}, schema={"name": kind, "short": kind})
        # By a join: replacing texts would first write every row's out.
        plan = tables[table].join(short.lazy(), on="name", how="left", maintain_order="left")
        plan = plan.with_columns(name=pl.coalesce("short", "name")).drop("short")
        if table in in_memory:
            in_memory[table] = plan.collect()
            plan = in_memory[table].lazy()
        found[table] = plan
    return RankTables(found, in_memory)


def _short(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:_SHOWN]}… [{len(name)} characters, {digest}]"


def columns_of(tables: Tables, name: str, *columns: str) -> pl.DataFrame:
    """Collect columns of a table; a table that is in memory, or has no rows, needs no plan."""
    if not has_rows(tables, name):
        known: pl.DataFrame | None = empty(name)
    else:
        known = tables.in_memory.get(name) if isinstance(tables, RankTables) else None
    if known is None:
        return tables[name].select(columns).collect()
    return of_columns([known.get_column(column) for column in columns])


def collected(plan: pl.LazyFrame, tables: Tables) -> pl.DataFrame:
    """Collect a plan over tables; if these are small, without optimising and streaming: both would not pay."""
    if isinstance(tables, RankTables) and tables.small:
        return plan.collect(engine="in-memory", optimizations=_PLAIN)
    return plan.collect()


def shared(function: Callable[[Tables], _T]) -> Callable[[Tables], _T]:
    """Compute what several results need once for each :class:`RankTables`; what it returns must not be changed."""

    @wraps(function)
    def once(tables: Tables) -> _T:
        if not isinstance(tables, RankTables):
            return function(tables)
        if function not in tables.shared:
            tables.shared[function] = function(tables)
        result: _T = tables.shared[function]
        return result

    return once


def forget(tables: Tables, *functions: Callable[[Tables], Any]) -> None:
    """Drop what functions marked by :func:`shared` returned for a large rank: they compute it again if asked."""
    if isinstance(tables, RankTables) and tables.large:
        for function in functions:
            tables.shared.pop(vars(function)["__wrapped__"], None)


@shared
def facts(tables: Tables) -> dict[str, str]:
    """Return the facts about the run by key, each value JSON."""
    rows = columns_of(tables, "metadata", "key", "value")
    return dict(zip(rows["key"].to_list(), rows["value"].to_list(), strict=True))


def write(frames: Mapping[str, pl.DataFrame], directory: Path) -> Sums:
    """Write tables as ``<name>.parquet`` (zstd) into ``directory``, each under a temporary name first.

    A table without rows has no file. The sums of the files are returned, for :func:`scan`.
    """
    make_private(directory)
    before = {path.name for path in directory.iterdir()}
    small: dict[str, BytesIO] = {}
    sums: Sums = {}
    for name, frame in frames.items():
        file_name = f"{name}.parquet"
        if frame.height > _FEW_ROWS:
            with replacing(directory / file_name) as temporary:
                frame.write_parquet(temporary, compression="zstd")
                sums[file_name] = size_and_sum(temporary)
        elif frame.height:
            small[file_name] = BytesIO()
        elif file_name in before:
            (directory / file_name).unlink()
    # By its statistics a scan passes over parts of a file; a small one has one part only.
    options: dict[str, Any] = {"compression": "zstd", "statistics": False, "lazy": True}
    plans = {name: frames[name.removesuffix(".parquet")].lazy() for name in small}
    pl.collect_all([plans[name].sink_parquet(file, **options) for name, file in small.items()])
    for name, file in small.items():
        content = file.getbuffer()
        write_atomically(directory / name, content)
        sums[name] = (len(content), zlib.crc32(content))
    return sums


def scan(directory: Path, sums: Sums, known: Mapping[str, pl.DataFrame] | None = None) -> RankTables | None:
    """Return the tables of ``directory`` lazily, or None if a file is not as it was written.

    A table without rows has no file. A small table is read at once.

    Args:
        directory: The folder that :func:`write` was given.
        sums: What :func:`write` returned.
        known: The frames that were written, where the caller still has them: small ones are not read again.
    """
    found, in_memory = {}, {}
    files: dict[str, Path] = {}
    for name in TABLES:
        path = directory / f"{name}.parquet"
        written = sums.get(path.name)
        if written is None:
            found[name] = empty_lazily(name)
        elif known is None and not _is_as_written(path, written):
            return None
        else:
            files[name] = path
            if written[0] > _SMALL:
                found[name] = pl.scan_parquet(_source(path), glob=False)
            else:
                in_memory[name] = pl.read_parquet(_source(path), glob=False) if known is None else known[name]
                found[name] = in_memory[name].lazy()
    tables = RankTables(found, in_memory)
    tables.files = files
    return tables


def _source(path: Path) -> Path | BytesIO:
    """Return what Polars reads a file from: it takes only paths that are UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return BytesIO(path.read_bytes())
    return path


def _is_as_written(path: Path, written: tuple[int, int]) -> bool:
    try:
        return size_and_sum(path) == tuple(written)
    except OSError:
        return False
