"""The columns of the files that Ascend's profilers write: the reader and the writer of these files use this table.

``torch_npu`` and MindSpore write the same files with differences in names, columns and units; CANN's own files and
older versions use further names. Text files hold times in µs and sizes in the unit of the header; databases hold ns,
bytes, and the numbers of texts. Sources: CANN's and torch_npu's documents, and captures of both profilers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.trace.schema import STATED

#: What a column of a text file holds. STAMP: µs since the epoch, with a tab at the end for spreadsheets, which round
#: long numbers. HELD: a duration in µs with a tab. TIME: µs. SIZE: the unit in the header. DEVICE: ``NPU:0``.
#: HELD_SIZE: a SIZE whose MB are 1000 KB in MindSpore's file. INDEX: the number of a device. SHAPES: a text in quotes
#: of its own.
STAMP, HELD, TIME, SIZE, HELD_SIZE, DEVICE, INDEX, WHOLE, REAL, LABEL, SHAPES = (
    *("stamp", "held", "time", "size", "held size", "device", "index", "whole", "real", "label", "shapes"),
)
#: What a column of a database holds: a number, a text, the number of a text in ``STRING_IDS``; ``ENUM_…`` is the number
#: of a text in the table of that name. UNREAD: the writer fills it and the reader does not need it.
INT, FLOAT, TEXT, NAME, UNREAD = "int", "float", "text", "name", "unread"

#: 32 bits that mean “no number”: no model, no context, no rank.
UNKNOWN_32 = 4_294_967_295
MEBIBYTE = 1024 * 1024
#: Units of a size → bytes.
BYTES = {"B": 1, "Byte": 1, "KB": 1024, "MB": MEBIBYTE, "GB": 1 << 30}
#: Keys of `metadata`: the columns of the capture's CSV files by name; the process of its timeline that holds
#: communication. Both differ by level and version, and are what an export of the capture writes again.
COLUMNS, COMMUNICATION_PROCESS = f"{STATED}columns", f"{STATED}process of communication"
#: Group of the counters of ``npu_module_mem.csv``.
MODULE_MEMORY = "NPU module memory"


@dataclass(frozen=True)
class AscendColumn:
    """One column of a text file, and the column of a database that holds the same.

    Attributes:
        ours: Our column; empty if it follows from the others.
        sort: What it holds, as above.
        torch: Header in torch_npu's file; empty if torch_npu does not write the column.
        mindspore: Header in MindSpore's file, if it differs; empty if MindSpore does not write the column.
        also: Headers in CANN's files and in older versions.
        database: Column of the database.
    """

    ours: str
    sort: str
    torch: str
    mindspore: str | None = None
    also: tuple[str, ...] = ()
    database: str = ""

    def header(self, *, mindspore: bool) -> str:
        """Return the header that one of the two profilers writes; empty if it does not write the column."""
        return self.mindspore if mindspore and self.mindspore is not None else self.torch

    @property
    def headers(self) -> tuple[str, ...]:
        """All headers that the column has in any file."""
        return tuple(header for header in (self.mindspore, self.torch, *self.also) if header)


def unit_of(header: str) -> tuple[str, str]:
    """Return the name and the unit of a column: ``aic_mac_time(us)`` → ``aic_mac_time``, ``us``."""
    name, separator, rest = header.strip().rpartition("(")
    return (name.strip(), rest[:-1].strip()) if separator and rest.endswith(")") else (header.strip(), "")


#: ``kernel_details.csv`` of both, ``op_summary_*.csv`` of CANN.
KERNEL_DETAILS = (
    AscendColumn("step", WHOLE, "Step Id", "Step ID"),
    AscendColumn("model", WHOLE, "Model ID"),
    AscendColumn("task", WHOLE, "Task ID"),
    AscendColumn("stream", WHOLE, "Stream ID"),
    AscendColumn("name", LABEL, "Name", also=("Op Name",), database="name"),
    AscendColumn("op_type", LABEL, "Type", also=("OP Type",), database="opType"),
    AscendColumn("state", LABEL, "OP State", database="opState"),
    AscendColumn("core", LABEL, "Accelerator Core", also=("Task Type",), database="taskType"),
    AscendColumn("ts", STAMP, "Start Time(us)", also=("Task Start Time(us)", "Task Start Time")),
    AscendColumn("dur", TIME, "Duration(us)", also=("Task Duration(us)",)),
    AscendColumn("gap", TIME, "Wait Time(us)", also=("Task Wait Time(us)",)),
    AscendColumn("blocks", WHOLE, "Block Dim", "Block Num"),
    AscendColumn("mix_blocks", WHOLE, "Mix Block Dim", "Mix Block Num"),
    AscendColumn("hf32", LABEL, "HF32 Eligible", database="hf32Eligible"),
    AscendColumn("input_shapes", SHAPES, "Input Shapes", database="inputShapes"),
    AscendColumn("input_dtypes", LABEL, "Input Data Types", database="inputDataTypes"),
    AscendColumn("input_formats", LABEL, "Input Formats", database="inputFormats"),
    AscendColumn("output_shapes", SHAPES, "Output Shapes", database="outputShapes"),
    AscendColumn("output_dtypes", LABEL, "Output Data Types", database="outputDataTypes"),
    AscendColumn("output_formats", LABEL, "Output Formats", database="outputFormats"),
    AscendColumn("context", WHOLE, "Context ID", also=("Subtask ID",)),
    # Only CANN's files have these.
    AscendColumn("device", WHOLE, "", also=("Device_id",)),
    AscendColumn("batch", WHOLE, "", also=("Batch ID",)),
    AscendColumn("attributes", LABEL, "", also=("Attr Info",), database="attrInfo"),
    *(AscendColumn("", LABEL, "", also=(header,)) for header in ("Model Name", "Index", "Inf ID", "Infer ID")),
)
_TOTALS = ("Allocated", "Reserved", "Active")
#: ``memory_record.csv`` and MEMORY_RECORD.
MEMORY_RECORD = (
    AscendColumn("component", LABEL, "Component", database="component"),
    AscendColumn("ts", STAMP, "Timestamp(us)", database="timestamp"),
    *(AscendColumn(one.lower(), HELD_SIZE, f"Total {one}(MB)", database=f"total{one}") for one in _TOTALS),
    AscendColumn("stream", WHOLE, "Stream Ptr", "", database="streamPtr"),
    AscendColumn("device", DEVICE, "Device Type", also=("Device",), database="deviceId"),
)
#: ``operator_memory.csv`` and OP_MEMORY.
OPERATOR_MEMORY = (
    AscendColumn("name", LABEL, "Name", database="name"),
    AscendColumn("bytes", SIZE, "Size(KB)", database="size"),
    AscendColumn("ts", STAMP, "Allocation Time(us)", database="allocationTime"),
    AscendColumn("release", STAMP, "Release Time(us)", database="releaseTime"),
    AscendColumn("active_release", STAMP, "Active Release Time(us)", database="activeReleaseTime"),
    AscendColumn("", HELD, "Duration(us)", database="duration"),
    AscendColumn("", HELD, "Active Duration(us)", database="activeDuration"),
    *(
        AscendColumn(f"{ours}{one.lower()}", SIZE, f"{when} Total {one}(MB)", database=f"{when.lower()}Total{one}")
        for when, ours in (("Allocation", ""), ("Release", "released_"))
        for one in _TOTALS
    ),
    AscendColumn("stream", WHOLE, "Stream Ptr", database="streamPtr"),
    AscendColumn("device", DEVICE, "Device Type", database="deviceId"),
)
#: ``npu_module_mem.csv``.
NPU_MODULE_MEM = (
    AscendColumn("", INDEX, "", "Device_id"),
    AscendColumn("name", LABEL, "Component"),
    AscendColumn("ts", STAMP, "Timestamp(us)"),
    AscendColumn("value", SIZE, "Total Reserved(MB)", "Total Reserved(KB)"),
    AscendColumn("device", DEVICE, "Device", also=("Device Type",)),
)
#: ``static_op_mem.csv``.
STATIC_OP_MEM = (
    AscendColumn("device", INDEX, "Device_id"),
    AscendColumn("name", LABEL, "Op Name"),
    AscendColumn("model", LABEL, "Model Name"),
    AscendColumn("graph", WHOLE, "Graph ID"),
    AscendColumn("first_node", WHOLE, "Node Index Start"),
    AscendColumn("last_node", WHOLE, "Node Index End"),
    AscendColumn("bytes", SIZE, "Size(KB)"),
)
#: Rates of the L2 cache; they are counters of a kernel under these names.
L2_CACHE: tuple[str, ...] = ("Hit Rate", "Victim Rate")
#: ``l2_cache.csv``.
L2_CACHE_RATES = (
    AscendColumn("", INDEX, "", "Device_id"),
    AscendColumn("stream", WHOLE, "Stream Id"),
    AscendColumn("task", WHOLE, "Task Id"),
    *(AscendColumn(rate, REAL, rate) for rate in L2_CACHE),
    AscendColumn("op", LABEL, "Op Name"),
)
#: ``operator_details.csv``.
OPERATOR_DETAILS = (
    AscendColumn("name", LABEL, "Name"),
    AscendColumn("shapes", LABEL, "Input Shapes"),
    AscendColumn("", LABEL, "Call Stack", ""),
    *(
        AscendColumn("", TIME, f"{where} {which} Duration{of}(us)", "")
        for where, of in (("Host", ""), ("Device", ""), ("Device", " With AICore"))
        for which in ("Self", "Total")
    ),
)


@dataclass(frozen=True)
class SumOfCommunication:
    """One number of ``communication.json`` and ``communication_matrix.json``, and the column of their database.

    Attributes:
        ours: Our column.
        key: Key in the documents.
        column: Column of the database.
        parts: Our parts (ns, bytes) of the unit of both; 1 for a ratio.
    """

    ours: str
    key: str
    column: str
    parts: int = 1_000_000


#: *Communication Time Info* and CommAnalyzerTime; the start is in µs in both.
COMMUNICATION_TIMES = (
    SumOfCommunication("ts", "Start Timestamp(us)", "start_timestamp", 1000),
    SumOfCommunication("dur", "Elapse Time(ms)", "elapse_time"),
    SumOfCommunication("transit", "Transit Time(ms)", "transit_time"),
    SumOfCommunication("wait", "Wait Time(ms)", "wait_time"),
    SumOfCommunication("synchronisation", "Synchronization Time(ms)", "synchronization_time"),
    SumOfCommunication("idle", "Idle Time(ms)", "idle_time"),
)
#: A transport of *Communication Bandwidth Info*, a link of the matrix; CommAnalyzerBandwidth and CommAnalyzerMatrix.
COMMUNICATION_MOVED = (
    SumOfCommunication("bytes", "Transit Size(MB)", "transit_size"),
    SumOfCommunication("time", "Transit Time(ms)", "transit_time"),
    SumOfCommunication("bandwidth", "Bandwidth(GB/s)", "bandwidth", 1),
)

#: Table of a database → its columns in order, and what each holds. A capture may lack any table and any column.
DATABASE: dict[str, dict[str, str]] = {
    "TASK": {
        **dict.fromkeys(("startNs", "endNs", "deviceId", "connectionId", "globalTaskId"), INT),
        **{"globalPid": UNREAD, "taskType": NAME},
        **dict.fromkeys(("contextId", "streamId", "taskId", "modelId"), INT),
    },
    "COMPUTE_TASK_INFO": {
        **{"name": NAME, "globalTaskId": INT},
        # In the first versions the number of blocks is blockDim; in the last ones it is blockNum, and blockDim a text.
        **dict.fromkeys(("blockDim", "blockNum", "mixBlockDim", "mixBlockNum"), INT),
        **dict.fromkeys(("taskType", "opType", "inputFormats", "inputDataTypes", "inputShapes"), NAME),
        **dict.fromkeys(("outputFormats", "outputDataTypes", "outputShapes", "attrInfo", "opState"), NAME),
        "hf32Eligible": NAME,
    },
    "MEMCPY_INFO": {"globalTaskId": INT, "size": INT, "memcpyOperation": "ENUM_MEMCPY_OPERATION"},
    "TASK_PMU_INFO": {"globalTaskId": INT, "name": NAME, "value": FLOAT},
    "COMMUNICATION_OP": {
        **{"opName": NAME, "startNs": INT, "endNs": INT, "connectionId": INT, "groupName": NAME, "opId": INT},
        **{"relay": UNREAD, "retry": UNREAD, "dataType": "ENUM_HCCL_DATA_TYPE", "algType": NAME, "count": INT},
        **{"opType": NAME, "deviceId": INT},
    },
    "COMMUNICATION_TASK_INFO": {
        **{"name": UNREAD, "globalTaskId": INT, "taskType": NAME, "planeId": INT, "groupName": UNREAD, "notifyId": INT},
        **{"rdmaType": "ENUM_HCCL_RDMA_TYPE", "srcRank": INT, "dstRank": INT},
        **{"transportType": "ENUM_HCCL_TRANSPORT_TYPE", "size": INT, "dataType": "ENUM_HCCL_DATA_TYPE"},
        **{"linkType": "ENUM_HCCL_LINK_TYPE", "opId": INT, "bandwidth": FLOAT},
    },
    "CANN_API": {"startNs": INT, "endNs": INT, "type": INT, "globalTid": INT, "connectionId": INT, "name": NAME},
    "PYTORCH_API": {
        **{"startNs": INT, "endNs": INT, "globalTid": INT, "connectionId": INT, "name": NAME},
        **{"sequenceNumber": INT, "fwdThreadId": INT, "inputDtypes": NAME, "inputShapes": NAME},
        **{"callchainId": INT, "type": INT},
    },
    "CONNECTION_IDS": {"id": INT, "connectionId": INT},
    "PYTORCH_CALLCHAINS": {"id": INT, "stack": NAME, "stackDepth": INT},
    "GC_RECORD": {"startNs": INT, "endNs": INT, "globalTid": INT},
    "STEP_TIME": {"id": INT, "startNs": INT, "endNs": INT},
    **{
        table: {column.database: NAME if column.sort == LABEL else INT if column.ours else UNREAD for column in columns}
        for table, columns in (("MEMORY_RECORD", MEMORY_RECORD), ("OP_MEMORY", OPERATOR_MEMORY))
    },
    "META_DATA": {"name": TEXT, "value": TEXT},
    "SESSION_TIME_INFO": {"startTimeNs": INT, "endTimeNs": INT},
    "NPU_INFO": {"id": INT, "name": TEXT},
    "HOST_INFO": {"hostUid": TEXT, "hostName": TEXT},
    "RANK_DEVICE_MAP": {"rankId": INT, "deviceId": INT},
    "StepTraceTime": {
        **{"step": TEXT},
        **dict.fromkeys(("computing", "communication_not_overlapped", "overlapped", "communication", "free"), FLOAT),
        **dict.fromkeys(("stage", "bubble", "communication_not_overlapped_and_exclude_receive", "preparing"), FLOAT),
    },
    "CommAnalyzerTime": {
        **{"hccl_op_name": TEXT, "group_name": TEXT},
        **{number.column: FLOAT for number in COMMUNICATION_TIMES},
        **{"step": TEXT, "type": UNREAD},
    },
    "CommAnalyzerBandwidth": {
        **dict.fromkeys(("hccl_op_name", "group_name", "transport_type"), TEXT),
        **{number.column: FLOAT for number in COMMUNICATION_MOVED},
        **dict.fromkeys(("large_packet_ratio", "package_size", "count", "total_duration"), FLOAT),
        **{"step": TEXT, "type": TEXT},
    },
    "CommAnalyzerMatrix": {
        **dict.fromkeys(("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type"), TEXT),
        **{number.column: FLOAT for number in COMMUNICATION_MOVED},
        **{"step": TEXT, "type": TEXT, "op_name": TEXT},
    },
}
#: Layers of calls: number in ``ENUM_API_TYPE``, level, and what precedes the name of a call on the timeline.
LAYERS = (
    (5000, "runtime", "Runtime"),
    (5500, "hccl", "Hccl"),
    (10000, "node", "Node"),
    (15000, "model", "Model"),
    (20000, "acl", "AscendCL"),
)
#: Calls of the framework in ``ENUM_API_TYPE``.
OPERATOR_CALL, QUEUE_CALL, PYTHON_CALL, MARK_CALL = 50001, 50002, 50003, 50004
#: Names of counters in text files → in databases.
COUNTER_OF_DATABASE = {"aicore_time": "aic_total_time", "aiv_time": "aiv_total_time"}
#: 63 bits that mean “no notification”.
NO_NOTIFICATION = 2**63 - 1
#: Type of elements → its bytes.
BYTES_OF_TYPE = {
    **dict.fromkeys(("INT8", "UINT8", "HIF8", "FP8E4M3", "FP8E5M2", "FP8E8M0"), 1),
    **dict.fromkeys(("INT16", "UINT16", "FP16", "BFP16"), 2),
    **dict.fromkeys(("INT32", "UINT32", "FP32"), 4),
    **dict.fromkeys(("INT64", "UINT64", "FP64"), 8),
    "INT128": 16,
}


@dataclass(frozen=True)
class SampledTable:
    """A table of samples, and the counters that its columns are.

    Attributes:
        table: The table; every one has ``deviceId`` and ``timestampNs`` too.
        group: Group of its counters.
        values: Column → name of its counter with ``{}`` for each label, unit, and the database's parts of that unit.
        labels: Column that distinguishes counters → what it holds.
        host: Whether the samples are of the host.
    """

    table: str
    group: str
    values: Mapping[str, tuple[str, str, int]]
    labels: Mapping[str, str] = field(default_factory=dict)
    host: bool = False


def _network(table: str, group: str) -> SampledTable:
    columns = (
        ("PacketRate", "packets", "1/s", 1),
        ("ByteRate", "bandwidth", "MB/s", MEBIBYTE),
        ("Errors", "errors", "", 1),
        ("Dropped", "dropped", "", 1),
    )
    values = {
        f"{side}{column}": (f"Port {{}}/{side.capitalize()} {text}", unit, parts)
        for side in ("rx", "tx")
        for column, text, unit, parts in columns
    }
    return SampledTable(table, group, values, {"funcId": INT})


_PARTS = ("Min", "Max", "Avg")
_PCIE = {
    f"{side}{column}{part}": (f"PCIe_{column.lower()}/{side.capitalize()} {part.lower()}", "MB/s", MEBIBYTE)
    for side in ("tx", "rx")
    for column in ("Post", "Nonpost", "Cpl")
    for part in _PARTS
}
_PCIE |= {f"txNonpostLatency{part}": (f"PCIe_nonpost_latency/Tx {part.lower()}", "us", 1000) for part in _PARTS}
_NETDEV = (
    *("macTxPfcPkt", "macRxPfcPkt", "macTxByte", "macTxBandwidth", "macRxByte", "macRxBandwidth", "macTxBadByte"),
    *("macRxBadByte", "roceTxPkt", "roceRxPkt", "roceTxErrPkt", "roceRxErrPkt", "roceTxCnpPkt", "roceRxCnpPkt"),
    *("roceNewPktRty", "nicTxByte", "nicTxBandwidth", "nicRxByte", "nicRxBandwidth"),
)
_SIO = [f"{side}{part}" for side in ("rx", "tx") for part in ("Req", "Rsp", "Snp", "Dat")]
#: Names and units of counters are those of ``trace_view.json``; its MB are 1024 × 1024 bytes.
SAMPLES = (
    SampledTable("HBM", "HBM", {"bandwidth": ("HBM {}/{}", "MB/s", MEBIBYTE)}, {"hbmId": INT, "type": NAME}),
    SampledTable("DDR", "DDR", {"read": ("Read", "MB/s", MEBIBYTE), "write": ("Write", "MB/s", MEBIBYTE)}),
    SampledTable(
        "LLC",
        "LLC",
        {"throughput": ("LLC {} {}/Throughput", "MB/s", MEBIBYTE), "hitRate": ("LLC {} {}/Hit Rate", "%", 1)},
        {"llcId": INT, "mode": NAME},
    ),
    SampledTable("NPU_MEM", "NPU MEM", {"ddr": ("{}/DDR", "bytes", 1), "hbm": ("{}/HBM", "bytes", 1)}, {"type": NAME}),
    SampledTable("NPU_MODULE_MEM", MODULE_MEMORY, {"totalReserved": ("{}", "bytes", 1)}, {"moduleId": "ENUM_MODULE"}),
    SampledTable("AICORE_FREQ", "AI Core Freq", {"freq": ("AI Core Freq", "MHz", 1)}),
    SampledTable("QOS", "QoS", {"bandwidth": ("QoS {}", "", MEBIBYTE)}, {"eventName": NAME}),
    SampledTable(
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
    SampledTable(
        "SOC_BANDWIDTH_LEVEL",
        "Stars Soc Info",
        {"l2BufferBwLevel": ("L2 Buffer Bw Level", "", 1), "mataBwLevel": ("Mata Bw Level", "", 1)},
    ),
    SampledTable("HCCS", "HCCS", {f"{side}Throughput": (side.capitalize(), "MB/s", MEBIBYTE) for side in ("tx", "rx")}),
    SampledTable("PCIE", "PCIe", _PCIE),
    _network("NIC", "NIC"),
    _network("ROCE", "RoCE"),
    SampledTable("CPU_USAGE", "Host CPU", {"usage": ("CPU {}", "%", 1)}, {"cpuId": INT}, host=True),
    SampledTable("HOST_MEM_USAGE", "Host Memory", {"usage": ("Memory Usage", "%", 1)}, host=True),
    SampledTable(
        "HOST_DISK_USAGE",
        "Host Disk",
        {
            "readRate": ("Read", "MB/s", MEBIBYTE),
            "writeRate": ("Write", "MB/s", MEBIBYTE),
            "usage": ("Disk Usage", "%", 1),
        },
        host=True,
    ),
    SampledTable(
        "HOST_NETWORK_USAGE",
        "Host Network",
        {"usage": ("Network Usage", "%", 1), "speed": ("Speed", "MB/s", MEBIBYTE)},
        host=True,
    ),
    SampledTable(
        "NETDEV_STATS",
        "NIC",
        {name: (name, "MB/s", MEBIBYTE) if name.endswith("Bandwidth") else (name, "", 1) for name in _NETDEV},
    ),
    SampledTable(
        "UB", "UB", {"rxUdmaBind": ("Port {}/Rx", "", 1), "txUdmaBind": ("Port {}/Tx", "", 1)}, {"portId": INT}
    ),
    SampledTable("SIO", "SIO", {name: (f"{{}}/{name}", "", 1) for name in _SIO}, {"name": NAME}),
    SampledTable(
        "SAMPLE_PMU_TIMELINE",
        "AI Core Utilization",
        {"usage": ("{} {}/Utilization", "%", 1), "totalCycle": ("{} {}/Cycles", "", 1)},
        {"coreType": NAME, "coreId": INT},
    ),
)
#: Labels in databases → in the names of counters.
SAMPLE_LABELS = {"app": "APP", "device": "Device", "read": "Read", "write": "Write"}
