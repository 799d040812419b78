"""What memory is for, at its peak and over time; growth and fragmentation: against trainings of known sizes."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from stepscope.analyse.memory.memory_curve import memory_curve, memory_peak
from stepscope.analyse.memory.memory_growth import memory_fragmentation, memory_growth
from stepscope.read import read_files
from stepscope.trace.tables import Tables, lazy
from tests.unit.analyse.build import ORIGIN, Rank
from tests.unit.read.memory_snapshot.snapshot_build import trained, written

MB = 1 << 20
SIZES = [
    "Parameters(MB)",
    "Gradients(MB)",
    "Optimizer State(MB)",
    "Activations(MB)",
    "Batch(MB)",
    "Temporary(MB)",
    "Unknown(MB)",
]


def training(steps: int = 5, *, reserved: bool = True) -> Rank:
    """Steps of 1 ms on a GPU: 10 MB are there; batch 1, activation 16, its work 2, gradient 4, state 8, a leak of 3."""
    rank = Rank()
    host = rank.thread()
    allocated, address, gradient = 10 * MB, 0, 0
    rank.add("stacks", id=0, frames=[{"file": "/home/me/net.py", "line": 7, "function": "forward"}])

    def event(ts: int, place: int, size: int, span: int | None) -> None:
        nonlocal allocated
        allocated += size
        row = {"ts": ORIGIN + ts, "device": "cuda:0", "address": place, "bytes": size, "allocated": allocated}
        rank.add("allocations", **row, reserved=64 * MB if reserved else 0, span=span)

    def taken(ts: int, size: int, span: int | None) -> int:
        nonlocal address
        address += 1
        event(ts, address, size, span)
        return address

    for number in range(steps):
        at = 1_000_000 * number
        rank.step(number, at, 1_000_000)
        data = rank.span(host, "data", at + 10_000, 50_000, "next", phase="data")
        batch = taken(at + 20_000, MB, None)
        forward = rank.span(host, "operator", at + 100_000, 200_000, "aten::linear", phase="forward")
        inner = rank.span(host, "operator", at + 110_000, 180_000, "aten::empty", phase="forward")
        rank.add("operators", span=forward, module="Net_0/Linear_0", stack=0)
        work = taken(at + 120_000, 2 * MB, inner)
        activation = taken(at + 130_000, 16 * MB, inner)
        event(at + 140_000, work, -2 * MB, inner)
        if gradient:
            event(at + 310_000, gradient, -4 * MB, None)
        engine = "autograd::engine::evaluate_function: AddmmBackward0"
        rank.span(host, "operator", at + 400_000, 200_000, engine, phase="backward")
        node = rank.span(host, "operator", at + 410_000, 180_000, "AddmmBackward0", phase="backward")
        rank.add("flows", **{"from": forward, "to": node, "kind": "forward_backward"})
        work = taken(at + 420_000, 2 * MB, node)
        gradient = taken(at + 430_000, 4 * MB, node)
        event(at + 440_000, activation, -16 * MB, node)
        event(at + 450_000, work, -2 * MB, node)
        step = rank.span(host, "operator", at + 700_000, 100_000, "Optimizer.step#Adam.step", phase="optimizer")
        if number == 0:
            taken(at + 720_000, 8 * MB, step)
        work = taken(at + 730_000, 2 * MB, step)
        event(at + 740_000, work, -2 * MB, step)
        log = rank.span(host, "operator", at + 900_000, 10_000, "aten::clone", phase="other")
        taken(at + 905_000, 3 * MB, log)
        event(at + 950_000, batch, -MB, None)
        assert data >= 0
    return rank


def adds_up(tables: Tables) -> pl.DataFrame:
    found = memory_curve(tables)
    assert found.select(pl.sum_horizontal(SIZES))[SIZES[0]].to_list() == pytest.approx(found["Allocated(MB)"].to_list())
    assert found["Timestamp(us)"].is_sorted()
    return found


def test_the_curve_knows_what_memory_is_for() -> None:
    curve = adds_up(training().tables())
    # In the backward pass of step 3, when its gradient has been taken and nothing was given back yet
    row = (
        curve.filter((pl.col("Step") == 3) & (pl.col("Phase") == "backward")).sort("Allocated(MB)").row(-1, named=True)
    )
    assert [row[name] for name in SIZES] == [0, 4, 8, 16, 1, 2, 10 + 3 * 3]
    assert (row["Allocated(MB)"], row["Reserved(MB)"]) == (50, 64)


def test_a_recording_of_the_programs_state_tells_the_parameters() -> None:
    rank = training()
    state = {"models": [{"bytes_by_device": {"cuda:0": 7 * MB, "cpu": 5}}], "optimizers": []}
    rank.add("metadata", key="torch.state", value=json.dumps(state))
    assert adds_up(rank.tables())["Parameters(MB)"].unique().to_list() == [7]


@pytest.mark.parametrize("said", ["{", "[]", '{"models": 3}', '{"models": [{"bytes_by_device": {"cuda:0": 1e30}}]}'])
def test_a_state_that_says_nothing_tells_nothing(said: str) -> None:
    rank = training()
    rank.add("metadata", key="torch.state", value=said)
    assert adds_up(rank.tables())["Parameters(MB)"].unique().to_list() == [0]


def test_the_peak_names_who_holds_it() -> None:
    peak = memory_peak(training().tables())
    rows = {(row["Category"], row["Operator"]): row for row in peak.iter_rows(named=True)}
    assert peak["Size(MB)"].sum() == 53
    assert peak["Ratio(%)"].sum() == pytest.approx(100)
    activation = rows["activations", "aten::linear"]
    assert (activation["Size(MB)"], activation["Module"]) == (16, "Net_0/Linear_0")
    assert activation["Taken At"] == "/home/me/net.py(7): forward"
    gradient = rows["gradients", "AddmmBackward0"]
    assert (gradient["Size(MB)"], gradient["Module"], gradient["Taken At"]) == (
        4,
        "Net_0/Linear_0",
        activation["Taken At"],
    )
    assert rows["unknown", "before the recording"]["Size(MB)"] == 10
    assert (rows["unknown", "aten::clone"]["Count"], rows["unknown", "aten::clone"]["Size(MB)"]) == (4, 12)


def test_growth_names_who_keeps_memory() -> None:
    found = memory_growth(training().tables())
    assert found.select("Category", "Operator", "Count", "Held(MB)", "Growth(MB/step)").rows() == [
        ("all", None, None, 12, 3),
        ("unknown", "aten::clone", 3, 9, 3),
    ]


def test_a_healthy_training_does_not_grow() -> None:
    rank = training()
    # The logged copies are given back one step later
    for row in [row for row in rank.rows["allocations"] if row["bytes"] == 3 * MB]:
        rank.add("allocations", **{**row, "ts": row["ts"] + 1_000_000, "bytes": -3 * MB, "allocated": None})
    assert memory_growth(rank.tables()).filter(pl.col("Category") != "all").is_empty()


def test_three_steps_are_too_few() -> None:
    assert memory_growth(training(3).tables()).is_empty()


def test_fragmentation_of_a_pool() -> None:
    row = memory_fragmentation(training().tables()).row(0, named=True)
    assert (row["Peak Allocated(MB)"], row["Peak Reserved(MB)"], row["Segments"]) == (53, 64, None)
    assert memory_fragmentation(training(reserved=False).tables()).is_empty()
    # A source that counts what is reserved, and not what is allocated, says nothing of it
    unsaid = training()
    for allocation in unsaid.rows["allocations"]:
        allocation["allocated"] = 0
    assert memory_fragmentation(unsaid.tables()).is_empty()


def test_the_host_counts_from_its_own_start() -> None:
    # Given a source that begins at 0, and a block from before that is given back
    rank = training()
    for row in rank.rows["allocations"]:
        row["allocated"] -= 10 * MB
    rank.add("allocations", ts=ORIGIN + 5, device="cuda:0", address=999, bytes=-6 * MB, allocated=-6 * MB)
    for row in rank.rows["allocations"][:-1]:
        row["allocated"] -= 6 * MB
    curve = adds_up(rank.tables())
    assert curve["Unknown(MB)"].min() == 0
    assert curve["Allocated(MB)"].min() >= 0


def test_without_addresses_nothing_is_told_apart() -> None:
    rank = training()
    for row in rank.rows["allocations"]:
        row["address"] = None
    curve = adds_up(rank.tables())
    assert curve["Unknown(MB)"].to_list() == curve["Allocated(MB)"].to_list()


def test_a_snapshot_has_categories_by_its_stacks(tmp_path: Path) -> None:
    tables = lazy(read_files([written(tmp_path / "snapshot.pickle")]))
    adds_up(tables)
    peak = memory_peak(tables)
    sums = dict(peak.group_by("Category").agg(pl.col("Size(MB)").sum()).iter_rows())
    # 8 MB of parameters were taken before the history, five times 3 MB were kept
    assert sums == {
        "activations": 16, "gradients": 4, "optimizer state": 8, "batch": 1, "temporary": 2, "unknown": 8 + 5 * 3,
    }  # fmt: skip
    growth = memory_growth(tables)
    assert growth.select("Category", "Taken At", "Growth(MB/step)").rows() == [
        ("all", None, 3),
        ("unknown", "/home/me/train.py(44): log", 3),
    ]
    row = memory_fragmentation(tables).row(0, named=True)
    assert row["In Use(MB)"] - row["Rounding(MB)"] == pytest.approx(8 + 4 + 8 + 6 * 3)
    assert row["Segments(MB)"] == pytest.approx(row["In Use(MB)"] + row["Free Segments(MB)"])


def test_a_history_of_the_whole_program_knows_its_parameters(tmp_path: Path) -> None:
    snapshot = trained().snapshot()
    moved = next(one for one in snapshot["segments"] if one["frames"] and one["frames"][0]["name"] == "to")
    entry = {"action": "alloc", "addr": moved["address"], "size": 8 * MB, "stream": 0, "frames": moved["frames"]}
    snapshot["device_traces"][0].insert(0, {**entry, "time_us": 1})
    tables = lazy(read_files([written(tmp_path / "snapshot.pickle", snapshot)]))
    assert adds_up(tables)["Parameters(MB)"].unique().to_list() == [8]


def test_the_categories_of_a_real_snapshot(shared_data: Path) -> None:
    # Given two states of Adam of a network with 89.75 MB of parameters, and a list that keeps 40 MB each time
    tables = lazy(read_files([shared_data / "memory" / "snapshot_expandable.pkl"]))
    adds_up(tables)
    peak = memory_peak(tables)
    sums = dict(peak.group_by("Category").agg(pl.col("Size(MB)").sum().round(2)).iter_rows())
    assert (sums["optimizer state"], sums["gradients"]) == (179.51, 89.75)
    first = peak.row(0, named=True)
    assert (first["Size(MB)"], first["Count"]) == (120, 3)
    assert first["Taken At"].endswith("memory_leaks_demo.py(12): train_one_step")
