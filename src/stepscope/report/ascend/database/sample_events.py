"""Samples of an NPU in the tables of Ascend's database of events; bandwidths in bytes/s, MB of 1024 × 1024."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.report.ascend.overlap_analysis import RankWork

_MB = 1024 * 1024


@dataclass(frozen=True)
class _Table:
    """How the counters of a group become a table.

    Attributes:
        name: The table.
        group: Name of the counters' track.
        pattern: What the names of its counters look like; a group for each label, and ``what`` for the column.
        labels: Columns that the groups of the pattern fill, numbers or texts.
        values: Text of the group ``what`` → column, and the database's parts of the counter's unit.
    """

    name: str
    group: str
    pattern: str
    labels: dict[str, type[pl.DataType]]
    values: dict[str, tuple[str, int]]


_TABLES = (
    _Table(
        "HBM",
        "HBM",
        r"^(?<what>HBM) (?<hbmId>\d+)/(?<type>.+)$",
        {"hbmId": pl.Int64, "type": pl.String},
        {"HBM": ("bandwidth", _MB)},
    ),
    _Table(
        "LLC",
        "LLC",
        r"^LLC (?<llcId>\d+) (?<mode>.+)/(?<what>.+)$",
        {"llcId": pl.Int64, "mode": pl.String},
        {"Hit Rate": ("hitRate", 1), "Throughput": ("throughput", _MB)},
    ),
    _Table(
        "NPU_MEM",
        "NPU MEM",
        r"^(?<type>.+)/(?<what>DDR|HBM)$",
        {"type": pl.String},
        {"DDR": ("ddr", 1), "HBM": ("hbm", 1)},
    ),
    _Table("AICORE_FREQ", "AI Core Freq", r"^(?<what>AI Core Freq)$", {}, {"AI Core Freq": ("freq", 1)}),
    _Table("QOS", "QoS", r"^(?<what>QoS) (?<eventName>.+)$", {"eventName": pl.String}, {"QoS": ("bandwidth", _MB)}),
    _Table(
        "ACC_PMU",
        "Acc PMU",
        r"^(?<what>\w+) (?<accId>\d+)$",
        {"accId": pl.Int64},
        {
            "read_bandwidth": ("readBwLevel", 1),
            "write_band_width": ("writeBwLevel", 1),
            "read_ost": ("readOstLevel", 1),
            "write_ost": ("writeOstLevel", 1),
        },
    ),
    _Table(
        "SOC_BANDWIDTH_LEVEL",
        "Stars Soc Info",
        r"^(?<what>.+)$",
        {},
        {"L2 Buffer Bw Level": ("l2BufferBwLevel", 1), "Mata Bw Level": ("mataBwLevel", 1)},
    ),
    _Table("HCCS", "HCCS", r"^(?<what>Tx|Rx)$", {}, {"Tx": ("txThroughput", _MB), "Rx": ("rxThroughput", _MB)}),
    _Table("DDR", "DDR", r"^(?<what>Read|Write)$", {}, {"Read": ("read", _MB), "Write": ("write", _MB)}),
)
_MODULES = "NPU module memory"
#: Texts as databases have them.
_LABELS = {"APP": "app", "Device": "device", "Read": "read", "Write": "write"}


def samples(work: RankWork) -> dict[str, pl.DataFrame]:
    """Return the tables of samples that have rows; texts as text."""
    lanes = work.tables["tracks"].filter(pl.col("kind") == "counter")
    places = lanes.select(
        pl.col("id").alias("track"),
        pl.col("name").alias("group"),
        pl.col("device").cast(pl.String).str.extract(r"^npu:(\d+)$").cast(pl.Int64).alias("deviceId"),
    )
    counters = work.tables["counters"].with_columns(pl.col("name").cast(pl.String))
    rows = counters.join(places, on="track").filter(pl.col("deviceId").is_not_null()).collect()
    made = {table.name: _table(rows.filter(pl.col("group") == table.group), table) for table in _TABLES}
    made["NPU_MODULE_MEM"], enumeration = _modules(rows.filter(pl.col("group") == _MODULES))
    found = {name: frame for name, frame in made.items() if len(frame)}
    return found | ({"ENUM_MODULE": enumeration} if len(enumeration) else {})


def _table(rows: pl.DataFrame, table: _Table) -> pl.DataFrame:
    """Return a row for each sample; what was sampled at once stands side by side."""
    told = rows.with_columns(pl.col("name").str.extract_groups(table.pattern).alias("of")).unnest("of")
    told = told.filter(pl.col("what").is_in(list(table.values)))
    key = ["deviceId", "ts", *table.labels]
    nth = pl.int_range(pl.len()).over([*key, "what"]).alias("nth")
    wide = told.with_columns(nth).pivot("what", index=[*key, "nth"], values="value", maintain_order=True)
    return wide.select(
        "deviceId",
        pl.col("ts").alias("timestampNs"),
        *(_label(name, dtype) for name, dtype in table.labels.items()),
        *(_column(wide, what, column, parts) for what, (column, parts) in table.values.items()),
    )


def _label(name: str, dtype: type[pl.DataType]) -> pl.Expr:
    return pl.col(name).replace(_LABELS) if dtype is pl.String else pl.col(name).cast(dtype)


def _column(wide: pl.DataFrame, what: str, column: str, parts: int) -> pl.Expr:
    value = pl.col(what) if what in wide.columns else pl.lit(None, pl.Float64)
    # Bytes are whole.
    return ((value * parts).round(0) if parts > 1 else value).alias(column)


def _modules(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the memory of modules, which have numbers of their own, and the names of the numbers."""
    names = rows["name"].unique(maintain_order=True)
    numbers = pl.DataFrame({"id": range(len(names)), "name": names}, schema={"id": pl.Int64, "name": pl.String})
    joined = rows.join(numbers, on="name", how="left", maintain_order="left")
    return joined.select(
        pl.col("id").alias("moduleId"),
        pl.col("ts").alias("timestampNs"),
        pl.col("value").alias("totalReserved"),
        "deviceId",
    ), numbers
