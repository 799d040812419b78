"""Parts × phases: against tables built by hand, an independent count of instants, and real captures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.analyse.anatomy.step_anatomy import step_anatomy
from stepscope.analyse.step.step_trace_time import step_trace_time
from stepscope.read import read_files
from stepscope.trace.tables import Tables, lazy
from tests.unit.analyse.build import Rank

PHASES = ["Data(us)", "Forward(us)", "Backward(us)", "Optimizer(us)", "Communication(us)", "Other(us)"]


def two_steps() -> Rank:
    """Two steps of 10 µs of a rank without a device: data, forward with a gap, backward, optimizer, a tail."""
    rank = Rank()
    host = rank.thread()
    for number, start in enumerate((0, 10_000)):
        rank.step(number, start, 10_000)
        rank.span(host, "data", start, 1_000, "next", phase="data")
        rank.span(host, "operator", start + 2_000, 1_000, "aten::mm", phase="forward")
        rank.span(host, "python", start + 3_000, 500, "python")
        rank.span(host, "operator", start + 4_000, 1_000, "aten::add", phase="forward")
        rank.span(host, "operator", start + 5_000, 3_000 + 500 * number, "backward", phase="backward")
        rank.span(host, "operator", start + 9_000, 400, "step", phase="optimizer")
    return rank


def test_parts_and_phases_cross_in_one_table() -> None:
    # Given the steps, when step 1 is taken apart
    found = step_anatomy(two_steps().tables()).filter(pl.col("Step") == 1)
    rows = {row["Part"]: [row[name] for name in PHASES] for row in found.iter_rows(named=True)}
    # Then each part is told by phase; the gap between two forward operators is forward, half of it Python
    assert rows["computing"] == [0, 2, 3.5, 0.4, 0, 0]
    assert rows["data wait"] == [1, 0, 0, 0, 0, 0]
    assert rows["host only"] == [0, 0.5, 0, 0, 0, 0]
    assert rows["idle"] == [0, 0.5, 0, 0, 0, 2.1]
    assert rows["step"] == [1, 3, 3.5, 0.4, 0, 2.1]


def test_all_steps_come_first_and_the_shares_are_of_the_step() -> None:
    found = step_anatomy(two_steps().tables())
    assert found["Step"].to_list() == [None] * 8 + [0] * 8 + [1] * 8
    backward = found.filter(pl.col("Part") == "computing")
    assert backward["Backward(us)"].to_list() == [6.5, 3, 3.5]
    assert backward["Share(%)"].to_list() == pytest.approx([100 * 11.3 / 20, 54, 59])


def test_without_phases_only_the_total_is_known() -> None:
    rank = two_steps()
    for row in rank.rows["spans"]:
        row.pop("phase", None)
    found = step_anatomy(rank.tables())
    assert found["Forward(us)"].null_count() == len(found)
    assert found.filter((pl.col("Part") == "step") & pl.col("Step").is_null())["Total(us)"].to_list() == [20]


def adds_up(tables: Tables) -> pl.DataFrame:
    """Check the sums of the table, in ns, against each other and against ``step_trace_time``."""
    found = step_anatomy(tables)
    phases = [name for name in found.columns[2:-2] if found[name].null_count() == 0]
    ns = found.select("Step", "Part", *((pl.col(name) * 1000).round().cast(pl.Int64) for name in found.columns[2:-1]))
    if phases:
        across = ns.select(pl.sum_horizontal(phases))[phases[0]]
        assert across.to_list() == ns["Total(us)"].to_list()
    whole, parts = ns.filter(pl.col("Part") == "step"), ns.filter(pl.col("Part") != "step")
    sums = parts.group_by("Step", maintain_order=True).agg(pl.col(*phases, "Total(us)").sum())
    assert sums.equals(whole.select(sums.columns))
    times = step_trace_time(tables)
    own = found.filter(pl.col("Step").is_not_null())
    for part, column in (("computing", "Computing"), ("copy", "Copy(Not Overlapped)"), ("idle", "Idle")):
        assert own.filter(pl.col("Part") == part)["Total(us)"].to_list() == times[column].to_list()
    return found


CAPTURES = ("cuda_event_sync", "alexnet_simple_add")


@pytest.mark.parametrize("name", CAPTURES)
def test_sums_of_captures(name: str) -> None:
    data = Path(__file__).parents[3] / "data" / "kineto"
    adds_up(lazy(read_files([data / f"{name}.json.gz"])))


def test_a_training_on_a_gpu(shared_data: Path) -> None:
    path = shared_data / "kineto" / "tracelens" / "ddp_resnet18_no_pool" / "train_resnet18.json.gz"
    found = adds_up(lazy(read_files([path])))
    computing = found.row(0, named=True)
    assert computing["Part"] == "computing"
    assert computing["Backward(us)"] > computing["Forward(us)"] > computing["Optimizer(us)"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_every_instant_counts_once(seed: int) -> None:
    # Given operators of random phases on two streams, with waits for data on a thread
    chance = np.random.default_rng(seed)
    rank = Rank()
    host, *streams = rank.thread(), rank.stream(), rank.stream(8)
    rank.step(0, 0, 300)
    rank.step(1, 300, 200)
    spans = []
    for _ in range(12):
        at, dur = int(chance.integers(0, 480)), int(chance.integers(1, 60))
        phase = str(chance.choice(["forward", "backward", "optimizer"]))
        kind = str(chance.choice(["kernel", "memcpy"]))
        rank.span(streams[int(chance.integers(2))], kind, at, dur, phase=phase)
        spans.append((at, at + dur, kind, phase))
    for at in (5, 400):
        rank.span(host, "data", at, 30, phase="data")
        spans.append((at, at + 30, "data", "data"))
    # When every nanosecond is looked at by itself
    order = ["backward", "forward", "optimizer", "data"]
    expected: dict[tuple[int, str, str], int] = {}
    at_once = [[span for span in spans if span[0] <= instant < span[1]] for instant in range(600)]
    owner = [min((order.index(span[3]) for span in active), default=-1) for active in at_once]
    for instant in range(500):
        kinds = {span[2] for span in at_once[instant]}
        part = next(
            (p for k, p in (("kernel", "computing"), ("memcpy", "copy"), ("data", "data wait")) if k in kinds), "idle"
        )
        before = next((owner[i] for i in range(instant, -1, -1) if owner[i] >= 0), -1)
        behind = next((owner[i] for i in range(instant, 600) if owner[i] >= 0), -2)
        phase = order[before] if before == behind else "other"
        key = (int(instant >= 300), part, phase)
        expected[key] = expected.get(key, 0) + 1
    # Then the table says the same
    found = step_anatomy(rank.tables()).filter(pl.col("Step").is_not_null() & (pl.col("Part") != "step"))
    for row in found.iter_rows(named=True):
        for phase in (*order, "other"):
            counted = expected.get((row["Step"], row["Part"], phase), 0)
            assert round(row[f"{phase.capitalize()}(us)"] * 1000) == counted, (row["Step"], row["Part"], phase)
