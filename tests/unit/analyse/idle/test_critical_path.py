"""The critical path: at each instant of the steps exactly one thing is on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyse.idle.critical_path import critical_path
from stepscope.trace.tables import Tables
from tests.unit.analyse.build import Rank

US = 1000


def path(tables: Tables) -> dict[tuple[str, str | None], float]:
    """Return the time on the path in µs by part and name, else operator; what takes none is left out."""
    found: dict[tuple[str, str | None], float] = {}
    for row in critical_path(tables).rows(named=True):
        key = row["Part"], row["Name"] or row["Operator"]
        if row["On Path(us)"]:
            found[key] = found.get(key, 0) + row["On Path(us)"]
    return found


def slack(tables: Tables) -> dict[str, float]:
    rows = critical_path(tables).rows(named=True)
    return {row["Name"]: row["Slack(us)"] for row in rows if row["Slack(us)"] is not None}


class Step(Rank):
    """A step of 1,000 µs with one thread and two streams; times in µs."""

    def __init__(self) -> None:
        super().__init__()
        self.step(0, 0, 1000 * US)
        self.main, self.first, self.second = self.thread(11), self.stream(7), self.stream(20)

    def host(self, kind: str, ts: int, dur: int, name: str, **more: object) -> int:
        return self.span(self.main, kind, ts * US, dur * US, name, **more)

    def kernel(self, stream: int, ts: int, dur: int, name: str, launch: int, **more: object) -> int:
        row = self.span(stream, "kernel", ts * US, dur * US, name, **more)
        self.add("kernels", span=row, device=0, launch=launch)
        return row

    def launched(self, call: int, stream: int, ts: int, dur: int, name: str) -> int:
        return self.kernel(stream, ts, dur, name, self.host("runtime", call, 5, "cudaLaunchKernel"))


def test_a_device_that_keeps_up_leaves_the_path_to_the_host() -> None:
    rank = Step()
    rank.host("operator", 0, 400, "aten::mm")
    rank.launched(100, rank.first, 110, 50, "small")
    rank.host("operator", 400, 600, "aten::add")
    rank.launched(500, rank.first, 510, 50, "small")
    assert path(rank.tables()) == {
        ("Host Preparing", "aten::mm"): 395,
        ("Host Preparing", "aten::add"): 595,
        ("Host Preparing", "cudaLaunchKernel"): 10,
    }
    assert slack(rank.tables()) == {"small": (350 + 0) / 2}


def test_a_host_that_runs_ahead_is_on_the_path_to_the_first_launch_only() -> None:
    rank = Step()
    rank.host("operator", 0, 80, "aten::mm")
    rank.launched(50, rank.first, 60, 340, "long")
    rank.launched(55, rank.first, 402, 498, "longer")
    rank.host("runtime", 90, 910, "cudaDeviceSynchronize")
    assert path(rank.tables()) == {
        ("Host Preparing", "aten::mm"): 50,
        ("Launch Latency", "cudaLaunchKernel"): 10,
        ("Computing", "long"): 340,
        ("Queued", None): 2,
        ("Computing", "longer"): 498,
        ("Synchronising Call", "cudaDeviceSynchronize"): 100,
    }


def test_an_awaited_stream_is_on_the_path_instead_of_the_queue() -> None:
    """Given work that waits for an event of another stream, then that stream's work decides when it begins."""
    rank = Step()
    rank.launched(0, rank.first, 10, 790, "produce")
    other = rank.launched(10, rank.second, 20, 30, "unrelated")
    rank.launched(20, rank.second, 803, 197, "consume")
    found = {("Computing", "produce"): 790, ("Computing", "consume"): 197, ("Queued", None): 3,
             ("Launch Latency", "cudaLaunchKernel"): 10}  # fmt: skip
    assert path(rank.tables()) == found  # by the times
    assert slack(rank.tables())["unrelated"] == 753
    call = rank.host("runtime", 15, 3, "cudaStreamWaitEvent", correlation=5)
    lane = rank.track("other", "cuda:0", stream=20)
    wait = rank.span(lane, "sync", 16 * US, US, "Stream Wait Event", correlation=5)
    rank.add("flows", **{"from": other, "to": wait, "kind": "wait"})
    assert path(rank.tables()) == {  # by what the capture says
        ("Host Preparing", "cudaLaunchKernel"): 5,
        ("Nothing Known", None): 5,
        ("Launch Latency", "cudaLaunchKernel"): 10,
        ("Computing", "unrelated"): 30,
        ("Queued", None): 753,
        ("Computing", "consume"): 197,
    }
    assert call


def test_a_stream_that_is_waited_for_is_told_from_others() -> None:
    rank = Step()
    rank.launched(0, rank.first, 10, 490, "awaited")
    rank.launched(5, rank.second, 20, 500, "other")
    rank.host("runtime", 15, 505, "cudaStreamSynchronize", correlation=9)
    lane = rank.track("other", "cuda:0", stream=7)
    rank.span(lane, "sync", 16 * US, 484 * US, "Stream Sync", correlation=9)
    rank.host("operator", 520, 480, "aten::item")
    assert path(rank.tables()) == {
        ("Launch Latency", "cudaLaunchKernel"): 10,
        ("Computing", "awaited"): 490,
        ("Synchronising Call", "cudaStreamSynchronize"): 20,
        ("Host Preparing", "aten::item"): 480,
    }


def test_a_copy_that_was_done_before_it_was_waited_for_is_not_on_the_path() -> None:
    rank = Step()
    rank.launched(0, rank.first, 10, 20, "early")
    rank.host("operator", 5, 900, "aten::mm")
    rank.host("runtime", 905, 95, "cudaDeviceSynchronize")
    found = path(rank.tables())
    assert ("Computing", "early") not in found
    assert found["Synchronising Call", "cudaDeviceSynchronize"] == 95


def test_forward_and_backward_threads_hand_over() -> None:
    rank = Step()
    backward = rank.thread(12)
    rank.host("operator", 0, 400, "forward")
    rank.span(backward, "operator", 420 * US, 380 * US, "backward")
    rank.host("operator", 810, 190, "optimizer")
    found = path(rank.tables())
    assert found == {
        ("Computing", "forward"): 400,
        ("Nothing Known", None): 20 + 10,
        ("Computing", "backward"): 380,
        ("Computing", "optimizer"): 190,
    }


PIECES = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "memcpy", "collective", "operator", "sync", "copy call", "data"]),
        st.integers(-20, 130), st.integers(0, 60), st.integers(0, 3), st.integers(-2, 30), st.booleans(),
    ),
    max_size=14,
)  # fmt: skip


@given(PIECES)
@pytest.mark.parametrize("waits", [False, True])
def test_the_path_takes_as_long_as_the_steps(waits: bool, pieces: list[tuple[str, int, int, int, int, bool]]) -> None:
    rank = Rank()
    rank.step(0, 0, 50)
    rank.step(1, 50, 70)
    threads, streams = [rank.thread(1), rank.thread(2)], [rank.stream(1), rank.stream(2), rank.stream(7, "cuda:1")]
    lane_of_waits = rank.track("other", "cuda:0", stream=2)
    works: list[int] = []
    for number, (kind, start, duration, lane, before, known) in enumerate(pieces):
        thread = threads[lane % 2]
        if kind in ("kernel", "memcpy", "collective"):
            works.append(rank.span(streams[lane % 3], kind, start, duration, kind))
            call = rank.span(thread, "runtime", start - before, max(before // 2, 0), "cudaLaunchKernel")
            rank.add("kernels", span=works[-1], device=lane % 3 // 2, launch=call if known else None)
        elif kind == "sync":
            rank.span(thread, "runtime", start, duration, "cudaDeviceSynchronize")
        elif kind == "copy call":
            rank.span(thread, "runtime", start, duration, "cudaStreamWaitEvent", correlation=number)
            wait = rank.span(lane_of_waits, "sync", start, duration, "Stream Wait Event", correlation=number)
            if waits and works:
                rank.add("flows", **{"from": works[lane % len(works)], "to": wait, "kind": "wait"})
        else:
            rank.span(thread, kind, start, duration, kind)
    rows = critical_path(rank.tables())
    assert sum(round(1000 * time) for time in rows["On Path(us)"]) == (120 if pieces else 0)
    assert not len(rows) or (rows["On Path(us)"] >= 0).all()
