"""Memory and samples of counters, from a database of events.

Names and units of counters are those of ``trace_view.json``; its MB are 1024 × 1024 bytes, by which the database's
numbers are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.read.ascend.ascend_frames import empty
from stepscope.read.ascend.database.sqlite import FLOAT, INT, NAME, Database
from stepscope.read.common.dense import places
from stepscope.read.common.distinct import combinations, filled, ordered, same, where, without_nulls

_MB = 1024 * 1024


@dataclass(frozen=True)
class _Samples:
    """How the samples of a table become counters.

    Attributes:
        table: The table.
        group: Group of its counters.
        values: Column → name of the counter with ``{}`` for labels, its unit, the database's parts of that unit.
        label: Columns that tell the counters of one column apart, and their sorts.
        host: Whether the host was sampled.
    """

    table: str
    group: str
    values: Mapping[str, tuple[str, str, int]]
    label: Mapping[str, str] | None = None
    host: bool = False


_PCIE = {"Post": "post", "Nonpost": "nonpost", "Cpl": "cpl"}
_KINDS: tuple[_Samples, ...] = (
    _Samples("HBM", "HBM", {"bandwidth": ("HBM {}/{}", "MB/s", _MB)}, {"hbmId": INT, "type": NAME}),
    _Samples("DDR", "DDR", {"read": ("Read", "MB/s", _MB), "write": ("Write", "MB/s", _MB)}),
    _Samples(
        "LLC",
        "LLC",
        {"throughput": ("LLC {} {}/Throughput", "MB/s", _MB), "hitRate": ("LLC {} {}/Hit Rate", "%", 1)},
        {"llcId": INT, "mode": NAME},
    ),
    _Samples("NPU_MEM", "NPU MEM", {"ddr": ("{}/DDR", "bytes", 1), "hbm": ("{}/HBM", "bytes", 1)}, {"type": NAME}),
    _Samples("NPU_MODULE_MEM", "NPU module memory", {"totalReserved": ("{}", "bytes", 1)}, {"moduleId": "ENUM_MODULE"}),
    _Samples("AICORE_FREQ", "AI Core Freq", {"freq": ("AI Core Freq", "MHz", 1)}),
    _Samples("QOS", "QoS", {"bandwidth": ("QoS {}", "", _MB)}, {"eventName": NAME}),
    _Samples(
        "ACC_PMU",
        "Acc PMU",
        {
            "readBwLevel": ("read_bandwidth {}", "", 1),
            "writeBwLevel": ("write_band_width {}", "", 1),
            "readOstLevel": ("read_ost {}", "", 1),
            "writeOstLevel": ("write_ost {}", "", 1),
        },
        {"accId": INT},
    ),
    _Samples(
        "SOC_BANDWIDTH_LEVEL",
        "Stars Soc Info",
        {"l2BufferBwLevel": ("L2 Buffer Bw Level", "", 1), "mataBwLevel": ("Mata Bw Level", "", 1)},
    ),
    _Samples("HCCS", "HCCS", {"txThroughput": ("Tx", "MB/s", _MB), "rxThroughput": ("Rx", "MB/s", _MB)}),
    _Samples(
        "PCIE",
        "PCIe",
        {
            f"{side}{column}{part}": (f"PCIe_{name}/{side.capitalize()} {part.lower()}", "MB/s", _MB)
            for side in ("tx", "rx")
            for column, name in _PCIE.items()
            for part in ("Min", "Max", "Avg")
        }
        | {
            f"txNonpostLatency{part}": (f"PCIe_nonpost_latency/Tx {part.lower()}", "us", 1000)
            for part in ("Min", "Max", "Avg")
        },
    ),
    *(
        _Samples(
            table,
            {"ROCE": "RoCE"}.get(table, table),
            {
                f"{side}{column}": (f"Port {{}}/{side.capitalize()} {text}", unit, parts)
                for side in ("rx", "tx")
                for column, text, unit, parts in (
                    ("PacketRate", "packets", "1/s", 1),
                    ("ByteRate", "bandwidth", "MB/s", _MB),
                    ("Errors", "errors", "", 1),
                    ("Dropped", "dropped", "", 1),
                )
            },
            {"funcId": INT},
        )
        for table in ("NIC", "ROCE")
    ),
    _Samples("CPU_USAGE", "Host CPU", {"usage": ("CPU {}", "%", 1)}, {"cpuId": INT}, host=True),
    _Samples("HOST_MEM_USAGE", "Host Memory", {"usage": ("Memory Usage", "%", 1)}, host=True),
    _Samples(
        "HOST_DISK_USAGE",
        "Host Disk",
        {"readRate": ("Read", "MB/s", _MB), "writeRate": ("Write", "MB/s", _MB), "usage": ("Disk Usage", "%", 1)},
        host=True,
    ),
    _Samples(
        "HOST_NETWORK_USAGE",
        "Host Network",
        {"usage": ("Network Usage", "%", 1), "speed": ("Speed", "MB/s", _MB)},
        host=True,
    ),
    _Samples(
        "NETDEV_STATS",
        "NIC",
        {
            name: (name, "MB/s" if name.endswith("Bandwidth") else "", _MB if name.endswith("Bandwidth") else 1)
            for name in (
                *("macTxPfcPkt", "macRxPfcPkt", "macTxByte", "macTxBandwidth", "macRxByte", "macRxBandwidth"),
                *("macTxBadByte", "macRxBadByte", "roceTxPkt", "roceRxPkt", "roceTxErrPkt", "roceRxErrPkt"),
                *("roceTxCnpPkt", "roceRxCnpPkt", "roceNewPktRty"),
                *("nicTxByte", "nicTxBandwidth", "nicRxByte", "nicRxBandwidth"),
            )
        },
    ),
    _Samples(
        "UB",
        "UB",
        {"rxUdmaBind": ("Port {}/Rx", "", 1), "txUdmaBind": ("Port {}/Tx", "", 1)},
        {"portId": INT},
    ),
    _Samples(
        "SIO",
        "SIO",
        {
            f"{side}{part}": (f"{{}}/{side}{part}", "", 1)
            for side in ("rx", "tx")
            for part in ("Req", "Rsp", "Snp", "Dat")
        },
        {"name": NAME},
    ),
    _Samples(
        "SAMPLE_PMU_TIMELINE",
        "AI Core Utilization",
        {"usage": ("{} {}/Utilization", "%", 1), "totalCycle": ("{} {}/Cycles", "", 1)},
        {"coreType": NAME, "coreId": INT},
    ),
)

#: Tables that are read here.
TABLES = {kind.table for kind in _KINDS} | {"MEMORY_RECORD", "OP_MEMORY", "NPU_OP_MEM"}
#: Labels as the timeline has them.
_LABELS = {"app": "APP", "device": "Device", "read": "Read", "write": "Write"}
_MEMORY = {
    "component": NAME,
    "timestamp": INT,
    "totalAllocated": INT,
    "totalReserved": INT,
    "totalActive": INT,
    "streamPtr": INT,
    "deviceId": INT,
}
_BLOCK = {
    "device": "deviceId",
    "name": "name",
    "bytes": "size",
    "ts": "allocationTime",
    "release": "releaseTime",
    "active_release": "activeReleaseTime",
    "allocated": "allocationTotalAllocated",
    "reserved": "allocationTotalReserved",
    "active": "allocationTotalActive",
    "released_allocated": "releaseTotalAllocated",
    "released_reserved": "releaseTotalReserved",
    "released_active": "releaseTotalActive",
    "stream": "streamPtr",
}
_CHANGE = {
    "operatorName": NAME,
    "addr": INT,
    "type": NAME,
    "size": INT,
    "timestampNs": INT,
    "globalTid": INT,
    "totalAllocate": INT,
    "totalReserve": INT,
    "component": NAME,
    "deviceId": INT,
}


def counters(opened: Database) -> pl.DataFrame:
    """Return the frame ``counters``."""
    sampled = [part for kind in _KINDS if kind.table in opened.tables for part in _sampled(opened, kind)]
    return pl.concat(sampled) if sampled else empty("counters")


def _sampled(opened: Database, kind: _Samples) -> Iterator[pl.DataFrame]:
    label = kind.label or {}
    columns = {"timestampNs": INT, "deviceId": INT, **label, **dict.fromkeys(kind.values, FLOAT)}
    rows = opened.rows(kind.table, columns)
    labels, label_of = combinations(*(rows[name] for name in label)) if label else ([()], np.zeros(len(rows), np.int64))
    device = same("device", None, len(rows), pl.Int64()) if kind.host else rows["deviceId"].alias("device")
    for column, (name, unit, parts) in kind.values.items():
        names = pl.Series("name", [_named(name, one) for one in labels], pl.Categorical())
        sampled = [
            rows["timestampNs"].alias("ts"),
            device,
            same("group", kind.group, len(rows)),
            names[places(label_of)],
            (rows[column] / parts).alias("value"),
            same("unit", unit, len(rows)),
        ]
        yield without_nulls(pl.DataFrame(sampled), ["value"])


def _named(name: str, labels: tuple[object, ...]) -> str:
    """Return the name of a counter with its labels in it."""
    return name.format(*("" if one is None else _LABELS.get(str(one), one) for one in labels))


def memory(opened: Database) -> pl.DataFrame:
    """Return the frame ``memory``: what the components of the framework hold, and what the process does in all."""
    rows = opened.rows("MEMORY_RECORD", _MEMORY)
    process = opened.rows("NPU_MEM", {"type": NAME, "ddr": INT, "hbm": INT, "timestampNs": INT, "deviceId": INT})
    # Only components with streams tell what is active; the others have 0.
    told = rows["streamPtr"].is_not_null() | (rows["totalActive"] > 0)
    recorded = [
        rows["timestamp"].alias("ts"),
        rows["deviceId"].alias("device"),
        rows["component"],
        rows["streamPtr"].alias("stream"),
        rows["totalAllocated"].alias("allocated"),
        rows["totalReserved"].alias("reserved"),
        where(told, rows["totalActive"]).alias("active"),
    ]
    process = process.filter(process["type"] == "app")
    whole = [
        process["timestampNs"].alias("ts"),
        process["deviceId"].alias("device"),
        same("component", "APP", len(process)),
        (filled(process["ddr"], 0) + filled(process["hbm"], 0)).alias("reserved"),
    ]
    return ordered(pl.concat([pl.DataFrame(recorded), pl.DataFrame(whole)], how="diagonal"), "ts")


def blocks(opened: Database) -> pl.DataFrame:
    """Return the frame ``blocks``; from the changes that GE wrote where the framework made no blocks of them."""
    if "OP_MEMORY" in opened.tables:
        rows = opened.rows("OP_MEMORY", {**dict.fromkeys(_BLOCK.values(), INT), "name": NAME})
        return pl.DataFrame([rows[name].alias(column) for column, name in _BLOCK.items()])
    if "NPU_OP_MEM" not in opened.tables:
        return empty("blocks")
    rows = ordered(opened.rows("NPU_OP_MEM", _CHANGE), "timestampNs")
    changes = rows.with_columns(
        pl.col("type").cum_count().over("addr", "type").alias("nth"), (pl.col("globalTid") % 2**32).alias("thread")
    )
    taken = changes.filter(pl.col("type") == "allocate").select(
        "nth",
        "thread",
        "component",
        address="addr",
        device="deviceId",
        name="operatorName",
        bytes="size",
        ts="timestampNs",
        allocated="totalAllocate",
        reserved="totalReserve",
    )
    freed = changes.filter(pl.col("type") == "release").select(
        "nth",
        address="addr",
        release="timestampNs",
        released_allocated="totalAllocate",
        released_reserved="totalReserve",
    )
    return taken.join(freed, on=["address", "nth"], how="left", maintain_order="left").drop("nth")
