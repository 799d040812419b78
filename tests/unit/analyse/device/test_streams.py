from __future__ import annotations

from stepscope.analyse.device.streams import queue_lengths, streams
from tests.unit.analyse.build import ORIGIN, Rank

US = 1000


def launched(rank: Rank, thread: int, stream: int, call: tuple[int, int], work: tuple[int, int]) -> int:
    """Add work and its launching call, each as start and duration in µs."""
    launch = rank.span(thread, "runtime", call[0] * US, call[1] * US, "cudaLaunchKernel")
    kernel = rank.span(stream, "kernel", work[0] * US, work[1] * US)
    rank.add("kernels", span=kernel, device=0, launch=launch)
    return launch


def two_streams() -> Rank:
    rank = Rank()
    thread, first, second = rank.thread(), rank.stream(7), rank.stream(20)
    launched(rank, thread, first, (0, 10), (12, 100))
    launched(rank, thread, first, (20, 10), (112, 5))
    launched(rank, thread, first, (40, 10), (117, 33))
    launched(rank, thread, second, (60, 10), (100, 30))
    return rank


def test_queue_and_delays_of_a_stream() -> None:
    rows = streams(two_streams().tables()).rows(named=True)
    assert [row["Stream ID"] for row in rows] == [7, 20]
    assert rows[0] == {
        "Device_id": "cuda:0", "Stream ID": 7, "Count": 3, "Busy(us)": 138.0,
        "Alone(us)": 108.0, "Concurrent(us)": 30.0, "Launched": 3,
        "Launch Delay Median(us)": 77.0, "Launch Delay P95(us)": 90.5,
        # 12 µs one, 8 none, 20 one, 72 two, 5 one
        "Queue Length Mean": round((12 + 20 + 2 * 72 + 5) / 117, 3),
        "Queue Length Max": 2, "Launched into Empty Queue": 2, "Short": 1, "Short Time(us)": 5.0,
    }  # fmt: skip


def test_the_length_of_a_queue_changes_with_every_launch_and_begin() -> None:
    series = queue_lengths(two_streams().tables())
    first = series.filter(series["track"] == series["track"][0])
    assert [((ts - ORIGIN) // US, length) for _, ts, length in first.rows()] == [
        (0, 1), (12, 0), (20, 1), (40, 2), (112, 1), (117, 0)
    ]  # fmt: skip


def test_kernels_of_a_graph_share_the_cost_of_its_launch() -> None:
    rank = Rank()
    thread, stream = rank.thread(), rank.stream()
    launch = rank.span(thread, "runtime", 0, 40 * US, "cudaGraphLaunch")
    for place in range(4):
        kernel = rank.span(stream, "kernel", (50 + 20 * place) * US, (9 + 2 * place) * US)
        rank.add("kernels", span=kernel, device=0, launch=launch, graph=1)
    row = streams(rank.tables()).row(0, named=True)
    assert (row["Short"], row["Short Time(us)"]) == (1, 9.0)


def test_without_launches_nothing_is_said_of_queues() -> None:
    rank = Rank()
    rank.span(rank.stream(), "kernel", 0, 10 * US)
    row = streams(rank.tables()).row(0, named=True)
    assert row["Busy(us)"] == 10
    unknown = ("Launch Delay Median(us)", "Queue Length Mean", "Queue Length Max", "Short", "Short Time(us)")
    assert [row[name] for name in unknown] == [None] * 5
