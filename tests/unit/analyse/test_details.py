"""kernel_details, api_statistic, device_time, dataset and the memory results."""

from __future__ import annotations

import pytest

from stepscope.analyse.data.dataset import dataset
from stepscope.analyse.device.api_statistic import api_statistic
from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.kernel_details import kernel_details, pieces
from stepscope.analyse.memory.memory_record import RESIDENT, memory_record, operator_memory

from .build import ORIGIN, Rank

ORIGIN_US = ORIGIN // 1000


def test_kernel_details_tells_launch_shape_and_operator() -> None:
    rank = Rank()
    host, stream = rank.thread(), rank.stream(7)
    operator = rank.span(host, "operator", 0, 50_000, "aten::mm")
    first = rank.span(stream, "kernel", 60_000, 20_001, "gemm", step=2, correlation=4)
    copy = rank.span(stream, "memcpy", 90_000, 5_000, "Memcpy HtoD")
    rank.span(stream, "annotation", 55_000, 90_000, "forward")
    rank.add("kernels", span=first, device=0, stream=7, context=1, grid=[4, 2, 1], block=[128, 1, 1], operator=operator)
    rank.add("kernels", span=copy, device=0, stream=7, bytes=1024, bandwidth=0.2)
    rank.add("operators", span=operator, shapes="[[2,3],[3,4]]", dtypes='["float","float"]')
    frame = kernel_details(rank.tables())
    assert frame.height == 2
    kernel, copied = frame.rows(named=True)
    assert (kernel["Step ID"], kernel["Device_id"], kernel["Stream ID"]) == (2, "cuda:0", 7)
    assert (kernel["Name"], kernel["Type"], kernel["Operator"]) == ("gemm", "kernel", "aten::mm")
    assert (str(kernel["Start Time(us)"]), kernel["Duration(us)"]) == (f"{ORIGIN_US + 60}.000", 20.001)
    assert (kernel["Block Num"], kernel["Grid"], kernel["Block"]) == (8, "[4, 2, 1]", "[128, 1, 1]")
    assert (kernel["Input Shapes"], kernel["Correlation ID"]) == ("[[2,3],[3,4]]", 4)
    assert (kernel["Wait Time(us)"], copied["Wait Time(us)"]) == (0.0, 9.999)
    assert (copied["Bytes"], copied["Grid"], copied["Operator"]) == (1024, None, None)


def test_operators_of_a_host_are_no_kernels() -> None:
    rank = Rank()
    host = rank.thread(11)
    rank.span(host, "operator", 0, 50_000, "aten::linear")
    leaf = rank.span(host, "operator", 10_000, 20_000, "aten::mm")
    rank.span(host, "operator", 70_000, 5_000, "aten::add")
    rank.add("operators", span=leaf, shapes="[[1]]")
    assert kernel_details(rank.tables()).is_empty()
    # The layout of Ascend's deliverables has them: its tools take the rows for the work of the rank.
    rows = pieces(rank.tables()).collect()
    assert rows["name"].to_list() == ["aten::mm", "aten::add"]
    assert rows["idle"].to_list() == [0, 40_000]


def test_wait_time_is_since_the_latest_end_on_the_stream() -> None:
    """Given a long and a short kernel at once, then the next one waits since the end of the long one."""
    rank = Rank()
    stream = rank.stream()
    rank.span(stream, "kernel", 0, 50_000)
    rank.span(stream, "kernel", 10_000, 5_000)
    rank.span(stream, "kernel", 60_000, 1_000)
    assert kernel_details(rank.tables())["Wait Time(us)"].to_list() == [0.0, 0.0, 10.0]


def test_device_time_unites_the_streams_of_each_device() -> None:
    rank = Rank()
    first, second, other = rank.stream(7), rank.stream(20), rank.stream(7, "cuda:1")
    rank.span(first, "kernel", 0, 10_000)
    rank.span(second, "kernel", 5_000, 10_000)
    rank.span(second, "collective", 12_000, 8_000)
    rank.span(first, "memcpy", 18_000, 7_000)
    rank.span(first, "kernel", 30_000, 10_000)
    rank.span(other, "kernel", 1_000, 2_000)
    rows = device_time(rank.tables()).rows(named=True)
    assert [row["Device_id"] for row in rows] == ["cuda:0", "cuda:1"]
    assert str(rows[0].pop("Start Time(us)")) == f"{ORIGIN_US}.000"
    assert rows[0] == {
        "Device_id": "cuda:0",
        "Range(us)": 40.0,
        "Busy(us)": 35.0,
        "Computing(us)": 25.0,
        "Communication(us)": 8.0,
        "Communication(Not Overlapped)(us)": 5.0,
        "Copy(us)": 7.0,
        "Copy(Not Overlapped)(us)": 5.0,
        "Idle(us)": 5.0,
        "Busy(%)": 87.5,
    }
    assert (rows[1]["Range(us)"], rows[1]["Busy(us)"], rows[1]["Busy(%)"]) == (2.0, 2.0, 100.0)


def test_api_statistic_sums_calls_by_level_and_name() -> None:
    rank = Rank()
    host, stream = rank.thread(), rank.stream()
    for dur in (1_000, 3_000):
        rank.span(host, "runtime", 10_000 * dur, dur, "cudaLaunchKernel")
    rank.span(host, "driver", 0, 500, "cuLaunchKernel")
    rank.span(host, "operator", 0, 900, "aten::mm")
    rank.span(stream, "collective", 0, 900, "ncclKernel")
    assert api_statistic(rank.tables()).rows() == [
        ("cpu", "Runtime", "cudaLaunchKernel", 4.0, 2, 2.0, 1.0, 3.0, 1.0),
        ("cpu", "Driver", "cuLaunchKernel", 0.5, 1, 0.5, 0.5, 0.5, 0.0),
    ]


def test_dataset_names_loader_stage_and_arguments() -> None:
    rank = Rank()
    host = rank.thread()
    for place in range(2):
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        span = rank.span(host, "data", place * 100_000, 3_000 + 2_000 * place, name)
        rank.add("arguments", span=span, key="workers", value="4")
        rank.span(host, "data", place * 100_000 + 500, 2_000, name)  # the framework's own account of the same wait
    rank.span(host, "data", 500_000, 1_000, "tfds")
    assert dataset(rank.tables()).rows() == [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter", "__next__", 2, 4.0, '{"workers": 4}'),
        ("tfds", None, 1, 1.0, None),
    ]


def test_memory_record_lists_allocator_and_process() -> None:
    rank = Rank()
    mebibyte = 1024 * 1024
    rank.add("allocations", ts=ORIGIN + 5_000, device="cuda:0", bytes=512, allocated=mebibyte, reserved=2 * mebibyte)
    rank.add("counters", ts=ORIGIN + 1_000, track=0, name=RESIDENT, value=3.0 * mebibyte, unit="bytes")
    rank.add("counters", ts=ORIGIN + 1_000, track=0, name="cpu", value=50.0, unit="%")
    frame = memory_record(rank.tables())
    assert frame.columns[1] == "Timestamp(us)"
    assert frame.drop("Timestamp(us)").rows() == [
        ("APP", None, 3.0, None, "cpu"),
        ("Framework", 1.0, 2.0, None, "cuda:0"),
    ]


@pytest.mark.parametrize("value", [1e300, -1e300, float("inf"), float("nan")])
def test_memory_that_no_integer_holds_is_unknown(value: float) -> None:
    rank = Rank()
    rank.add("counters", ts=ORIGIN + 1_000, track=0, name=RESIDENT, value=value, unit="bytes")
    rank.add("counters", ts=ORIGIN + 2_000, track=0, name=RESIDENT, value=2.0**20, unit="bytes")
    assert memory_record(rank.tables())["Total Reserved(MB)"].to_list() == [None, 1.0]


def test_operator_memory_pairs_a_block_with_its_release() -> None:
    """Given one address used twice, on two devices, and a block never freed, then each life is its own row."""
    rank = Rank()
    taker = rank.span(rank.thread(), "operator", 0, 100_000, "aten::empty")
    mebibyte = 1024 * 1024
    events = [
        (1_000, "cuda:0", 64, -512),  # taken before the recording
        (2_000, "cuda:0", 64, 1024),
        (3_000, "cpu", 64, 2048),
        (4_500, "cuda:0", 64, -1024),
        (6_000, "cuda:0", 64, 4096),
    ]
    for ts, device, address, size in events:
        rank.add(
            "allocations",
            ts=ORIGIN + ts,
            device=device,
            address=address,
            bytes=size,
            allocated=mebibyte * ts // 1000,
            span=taker if size > 0 else None,
        )
    rows = operator_memory(rank.tables()).rows(named=True)
    assert [row["Size(KB)"] for row in rows] == [1.0, 2.0, 4.0]
    assert [row["Duration(us)"] for row in rows] == [2.5, None, None]
    assert [row["Name"] for row in rows] == ["aten::empty"] * 3
    assert (rows[0]["Allocation Total Allocated(MB)"], rows[0]["Release Total Allocated(MB)"]) == (2.0, 4.5)
    assert str(rows[0]["Release Time(us)"]) == f"{ORIGIN_US + 4}.500"


def test_without_addresses_no_release_is_known() -> None:
    rank = Rank()
    for ts, size in ((1_000, 512), (2_000, -512)):
        rank.add("allocations", ts=ORIGIN + ts, device="cpu", bytes=size)
    assert operator_memory(rank.tables())["Release Time(us)"].to_list() == [None]
