"""The log of NVIDIA's Compute Command Line Profiler, version 2.0, made from device work that was recorded.

The columns have the profiler's order; the order of the options does not matter. Times of kernels are in µs with three
decimals, ``gpustarttimestamp`` and ``gpuendtimestamp`` in hexadecimal ns since the Unix epoch. Not compared with a log
of the original: ``TIMESTAMPFACTOR`` is the time of the first row in hexadecimal ns, and ``timestamp`` counts µs from
there; a key-value row has one key for all sides of a grid or block (``threadblocksize=[ 128, 1, 1 ]``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.read.cupti.cupti_work import COPIES, MEMORIES
from stepscope.trace.tables import Frames

#: The configuration of the document.
DEFAULT = (
    "gpustarttimestamp",
    "gpuendtimestamp",
    "gridsize3d",
    "threadblocksize",
    "streamid",
    "enableonstart 0",
    "conckerneltrace",
)

_ALWAYS = ""
#: Option → its columns, in the order of the log.
_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("timestamp", ("timestamp",)),
    ("gpustarttimestamp", ("gpustarttimestamp",)),
    ("gpuendtimestamp", ("gpuendtimestamp",)),
    (_ALWAYS, ("method", "gputime", "cputime")),
    ("gridsize", ("gridsizeX", "gridsizeY")),
    ("gridsize3d", ("gridsizeX", "gridsizeY", "gridsizeZ")),
    ("threadblocksize", ("threadblocksizeX", "threadblocksizeY", "threadblocksizeZ")),
    ("dynsmemperblock", ("dynsmemperblock",)),
    ("stasmemperblock", ("stasmemperblock",)),
    ("regperthread", ("regperthread",)),
    (_ALWAYS, ("occupancy",)),
    ("streamid", ("streamid",)),
    ("cacheconfigexecuted", ("cacheconfigexecuted",)),
    ("cacheconfigrequested", ("cacheconfigrequested",)),
    ("memtransfersize", ("memtransfersize",)),
    ("memtransferdir", ("memtransferdir",)),
    ("memtransferhostmemtype", ("memtransferhostmemtype",)),
)
#: Options that make no column.
_FLAGS = ("conckerneltrace", "countermodeaggregate", "enableonstart", "profilelogformat")
#: A copy has a direction only if one side is the host. The profiler numbers host memory: pageable 0, pinned 1.
_DIRECTIONS = {COPIES.index("HtoD"): 0, COPIES.index("DtoH"): 1}
_HOST_MEMORY = {MEMORIES.index("Pageable"): 0, MEMORIES.index("Pinned"): 1}
#: ``CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC``.
_ASYNCHRONOUS = 1

#: Optional columns of the table that :func:`log` takes; a missing one stays empty in the log.
_OPTIONAL: dict[str, pl.DataType | type[pl.DataType]] = {
    "call": pl.Int64,
    "grid": pl.List(pl.Int64),
    "block": pl.List(pl.Int64),
    "registers": pl.Int64,
    "static_shared": pl.Int64,
    "dynamic_shared": pl.Int64,
    "theoretical": pl.Float64,
    "stream": pl.Int64,
    "cache": pl.Int64,
    "bytes": pl.Int64,
    "copy": pl.Int64,
    "source": pl.Int64,
    "destination": pl.Int64,
    "device": pl.Int64,
    "context": pl.Int64,
}


@dataclass(frozen=True)
class Config:
    """What a configuration asks for.

    Attributes:
        options: Names of options with columns.
        concurrent: Whether kernels may overlap while they are recorded.
        format: ``csv`` or ``kvp`` if ``profilelogformat`` sets it; else None.
        unknown: Words that are not options: hardware counters, and mistakes.
    """

    options: frozenset[str]
    concurrent: bool
    format: str | None
    unknown: tuple[str, ...]


def parse(config: Iterable[object]) -> Config:
    """Read a configuration: one option per item, its value behind a space."""
    words = [str(item).split() for item in config]
    known = {option for option, _ in _COLUMNS if option}
    names = [word[0] for word in words if word]
    formats = [word[1].lower() for word in words if len(word) > 1 and word[0] == "profilelogformat"]
    return Config(
        frozenset(names) & known,
        "conckerneltrace" in names,
        next((text for text in formats if text in ("csv", "kvp")), None),
        tuple(name for name in names if name not in known and name not in _FLAGS),
    )


def log(work: pl.DataFrame, config: Config, mode: str, devices: Mapping[int, str], warnings: Sequence[str] = ()) -> str:
    """Return the log.

    Args:
        work: One row per kernel, copy and fill: ``ts`` (ns since the epoch), ``dur`` (ns), ``method`` and any of:
            ``call`` (ns that the launching call took), ``grid``, ``block``, ``registers``, ``static_shared``,
            ``dynamic_shared``, ``theoretical`` (occupancy, 0 to 1), ``stream``, ``cache``, ``bytes``, ``copy``,
            ``source``, ``destination``, ``device``, ``context``, as :mod:`stepscope.read.cupti.cupti_work` has them.
        config: Which columns.
        mode: ``csv`` or ``kvp``.
        devices: Names of GPUs by number.
        warnings: Texts of further warnings.
    """
    missing = [pl.lit(None, kind).alias(name) for name, kind in _OPTIONAL.items() if name not in work.columns]
    work = work.with_columns(missing).sort("ts", maintain_order=True)
    chosen = [columns for option, columns in _COLUMNS if option == _ALWAYS or option in config.options]
    names = list(dict.fromkeys(name for columns in chosen for name in columns))
    texts = work.select(**_texts())
    rows = texts.select(names).write_csv(include_header=False) if mode == "csv" else _pairs(texts, config)
    unknown = [f"Ignoring the invalid profiler config option: {name}" for name in config.unknown]
    said = [f"NV_Warning: {text}" for text in (*unknown, *warnings)]
    return "\n".join([*_head(work, mode, devices), *said, ",".join(names), rows])


def _head(work: pl.DataFrame, mode: str, devices: Mapping[int, str]) -> list[str]:
    used = sorted(work["device"].drop_nulls().unique().to_list()) or sorted(devices)[:1]
    contexts = sorted(work["context"].drop_nulls().unique().to_list()) or [1]
    start = int(work["ts"].min() or 0)  # type: ignore[arg-type]
    return [
        "# CUDA_PROFILE_LOG_VERSION 2.0",
        *(f"# CUDA_DEVICE {number} {devices.get(number, 'unknown')}" for number in used),
        *(f"# CUDA_CONTEXT {number}" for number in contexts),
        *(["# CUDA_PROFILE_CSV 1"] if mode == "csv" else []),
        f"# TIMESTAMPFACTOR {start:x}",
    ]


def _texts() -> dict[str, pl.Expr]:
    """Return every column of the log as text."""
    end = pl.col("ts") + pl.col("dur")
    sides = {
        f"{name}{axis}": pl.col(column).list.get(index, null_on_oob=True)
        for name, column in (("gridsize", "grid"), ("threadblocksize", "block"))
        for index, axis in enumerate("XYZ")
    }
    numbers = {
        **sides,
        "dynsmemperblock": pl.col("dynamic_shared"),
        "stasmemperblock": pl.col("static_shared"),
        "regperthread": pl.col("registers"),
        "streamid": pl.col("stream"),
        "cacheconfigexecuted": pl.col("cache") // 16,
        "cacheconfigrequested": pl.col("cache") % 16,
        "memtransfersize": pl.when(pl.col("copy").is_not_null()).then(pl.col("bytes")),
        "memtransferdir": pl.col("copy").replace_strict(_DIRECTIONS, default=None, return_dtype=pl.Int64),
        "memtransferhostmemtype": pl.when(pl.col("copy") == COPIES.index("HtoD"))
        .then(pl.col("source"))
        .when(pl.col("copy") == COPIES.index("DtoH"))
        .then(pl.col("destination"))
        .replace_strict(_HOST_MEMORY, default=None, return_dtype=pl.Int64),
    }
    return {
        "timestamp": _decimals(pl.col("ts") - pl.col("ts").min()),
        "gpustarttimestamp": _hexadecimal(pl.col("ts")),
        "gpuendtimestamp": _hexadecimal(end),
        "method": pl.col("method").cast(pl.String),
        "gputime": _decimals(pl.col("dur")),
        "cputime": _decimals(pl.col("call")),
        "occupancy": _decimals((pl.col("theoretical") * 1000).round().cast(pl.Int64)),
        **{name: number.cast(pl.String) for name, number in numbers.items()},
    }


def _decimals(thousandths: pl.Expr) -> pl.Expr:
    """Return integers over 1000 as text with three decimals, exactly."""
    whole, rest = thousandths // 1000, thousandths % 1000
    return whole.cast(pl.String) + "." + rest.cast(pl.String).str.zfill(3)


def _hexadecimal(ns: pl.Expr) -> pl.Expr:
    return ns.map_elements(lambda value: f"{value:x}", return_dtype=pl.String)


def _pairs(texts: pl.DataFrame, config: Config) -> str:
    """Return rows of ``key=[ value ]``; keys without a value are left out."""
    pairs = []
    for option, columns in _COLUMNS:
        if option == _ALWAYS:
            pairs += [pl.format(f"{name}=[ {{}} ]", pl.col(name)) for name in columns]
        elif option in config.options:
            values = pl.concat_str([pl.col(name) for name in columns], separator=", ")
            pairs.append(pl.format(f"{option}=[ {{}} ]", values))
    rows = texts.select(pl.concat_str(pairs, separator=" ", ignore_nulls=True)).to_series().to_list()
    return "".join(f"{row}\n" for row in rows)


def method(name: str, symbol: str | None, copy: int | None, flags: int | None) -> str:
    """Return the profiler's name of a kernel (its mangled symbol), a copy or a fill."""
    if symbol is not None:
        return symbol
    if copy is not None:
        return f"memcpy{COPIES[copy] if copy < len(COPIES) else ''}{'async' if (flags or 0) & _ASYNCHRONOUS else ''}"
    return "memset" if name.startswith("Memset") else name


def work_of(tables: Frames) -> pl.DataFrame:
    """Return the device work of a run's tables, of any collector, as :func:`log` takes it.

    The tables do not hold static and dynamic shared memory, the cache configuration and the theoretical occupancy:
    these columns stay empty.
    """
    spans = tables["spans"]
    calls = spans.select(launch="id", call="dur")
    work = (
        tables["kernels"]
        .join(spans.select("ts", "dur", "name", span="id"), on="span")
        .join(calls, on="launch", how="left")
    )
    text = pl.col("name").cast(pl.String)
    copied = text.str.extract(r"^Memcpy (\w+)")
    sides = text.str.extract_groups(r"\((.+) -> (.+)\)$")
    number = {name: code for code, name in enumerate(COPIES)}
    memory = {name: code for code, name in enumerate(MEMORIES)}
    work = work.with_columns(
        copy=copied.replace_strict(number, default=None, return_dtype=pl.Int64),
        source=sides.struct.field("1").replace_strict(memory, default=None, return_dtype=pl.Int64),
        destination=sides.struct.field("2").replace_strict(memory, default=None, return_dtype=pl.Int64),
    )
    names = pl.when(pl.col("copy").is_not_null()).then("memcpy" + copied)
    return work.with_columns(method=names.when(text.str.starts_with("Memset")).then(pl.lit("memset")).otherwise(text))
