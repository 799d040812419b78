"""Roofline and the list of instructions: against tables built by hand, and laws that hold whatever the numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyse.operators.instruction_details import instruction_details
from stepscope.analyse.operators.roofline import roofline
from stepscope.read import read_files
from stepscope.trace.tables import Tables, lazy
from tests.sizes import SIZE
from tests.unit.analyse.build import Rank


def instruction(rank: Rank, number: int, name: str, opcode: str = "fusion", **more: Any) -> int:
    row = {"id": number, "program": "jit_step", "program_id": 7, "name": name, "opcode": opcode, "computation": "main"}
    rank.add("instructions", **(row | {"parent": None, "flops": None, "bytes": None} | more))
    return number


def run(rank: Rank, track: int, number: int, ts: int, dur: int, name: str, **more: Any) -> int:
    span = rank.span(track, "kernel" if track else "operator", ts, dur, name)
    rank.add("operators", span=span, instruction=number, **more)
    return span


def peaks(rank: Rank, flops: Any, bandwidth: Any) -> None:
    rank.add("metadata", key="device_peak_flops", value=json.dumps(flops))
    rank.add("metadata", key="device_peak_bandwidth", value=json.dumps(bandwidth))


def compiled() -> Rank:
    """A product and a copy on a GPU of 1 TFLOP/s and 100 GB/s; the product as two kernels, twice."""
    rank = Rank()
    rank.thread()
    stream = rank.stream(device="cuda:0")
    product = instruction(
        rank, 0, "dot.1", "dot", flops=2_000_000, bytes=40_000, scope="jit(step)/dot", phase="forward"
    )
    copy = instruction(rank, 1, "copy.2", "copy", flops=0, bytes=100_000)
    loop = instruction(rank, 2, "while.3", "while", flops=4_000_000, bytes=80_000)
    run(rank, stream, loop, 0, 40_000, "while.3")
    for ts in (0, 20_000):
        run(rank, stream, product, ts, 3_000, "gemm", flops=2_000_000)
        run(rank, stream, product, ts + 4_000, 1_000, "reduce_splits")
    run(rank, stream, copy, 50_000, 2_000, "copy")
    peaks(rank, {"cuda:0": 1e12}, {"cuda:0": 1e11})
    return rank


def test_time_operations_and_bytes_make_a_place_under_the_roof() -> None:
    product, copy = roofline(compiled().tables()).rows(named=True)
    # 2 calls of 4 µs; 4 MFLOP take 4 µs at the peak, 80 kB take 0.8 µs
    assert (product["Device_id"], product["Name"], product["Count"], product["Total Time(us)"]) == (
        "cuda:0",
        "dot.1",
        2,
        8,
    )
    assert (product["Scope"], product["Phase"], product["Opcode"]) == ("jit(step)/dot", "forward", "dot")
    assert (product["FLOPs"], product["Bytes"], product["Intensity(FLOP/B)"]) == (4_000_000, 80_000, 50)
    assert product["Achieved(GFLOP/s)"] == pytest.approx(500)
    assert product["Achieved(GB/s)"] == pytest.approx(10)
    assert (product["Peak(GFLOP/s)"], product["Peak(GB/s)"]) == pytest.approx((1000, 100))
    assert product["Bound"] == "compute"
    assert product["Attainable(GFLOP/s)"] == pytest.approx(1000)
    assert product["Roofline(%)"] == pytest.approx(50)
    # A copy computes nothing: 100 kB in 2 µs are half of what the memory can do
    assert (copy["Name"], copy["Bound"], copy["FLOPs"], copy["Attainable(GFLOP/s)"]) == ("copy.2", "memory", 0, 0)
    assert copy["Roofline(%)"] == pytest.approx(50)


def test_what_runs_others_has_no_row_of_its_own() -> None:
    assert roofline(compiled().tables())["Name"].to_list() == ["dot.1", "copy.2"]


@pytest.mark.parametrize(
    ("whole", "parts", "family"),
    [
        ({"flops": 1_100, "scope": "jit(step)/add"}, {"dot": 1_000, "add": 100}, "matmul"),
        ({"flops": 1_100}, {"convolution": 1_000, "add": 100}, "convolution"),
        ({"flops": 900}, {"dot": 200, "convolution": 600, "add": 100}, "convolution"),
        # A fusion most of whose operations are not those of a product has no family, whatever its scope says
        ({"flops": 1_000, "scope": "jit(step)/dot_general"}, {"dot": 400, "add": 600}, None),
        ({"flops": 1_000, "transcendentals": 1_200}, {"dot": 1_000, "exponential": 0}, None),
        ({"flops": None, "scope": "jit(step)/dot_general"}, {"dot": 400, "custom-call": None}, None),
        ({"flops": 100}, {"add": 100}, None),
        ({"opcode": "custom-call", "flops": 1_000, "scope": "jit(step)/transpose(jvp())/dot_general"}, {}, "matmul"),
        ({"opcode": "custom-call", "flops": 1_000, "scope": "conv_general_dilated"}, {}, "convolution"),
        ({"opcode": "custom-call", "flops": None, "scope": "jit(step)/sort"}, {}, None),
    ],
)
def test_what_computes_mostly_a_product_is_of_its_family(
    whole: dict[str, Any], parts: dict[str, Any], family: str | None
) -> None:
    rank = Rank()
    run(rank, rank.thread(), instruction(rank, 0, "whole", **({"bytes": 8} | whole)), 0, 1_000, "whole")
    for number, (opcode, flops) in enumerate(parts.items(), 1):
        instruction(rank, number, f"part.{number}", opcode, parent=0, flops=flops)
    assert roofline(rank.tables())["Family"].to_list() == [family]


def test_without_peaks_only_what_was_reached_is_known() -> None:
    rank = compiled()
    del rank.rows["metadata"]
    row = roofline(rank.tables()).row(0, named=True)
    assert row["Achieved(GFLOP/s)"] == pytest.approx(500)
    assert {row[name] for name in ("Peak(GFLOP/s)", "Peak(GB/s)", "Attainable(GFLOP/s)", "Bound", "Roofline(%)")} == {
        None
    }


def eager(flops: Any = 2e12) -> Tables:
    """A product on a GPU in PyTorch: linear around addmm, which launches a kernel; and one on the host."""
    rank = Rank()
    host, stream = rank.thread(), rank.stream()
    rank.span(host, "operator", 0, 100_000, "aten::linear")
    inner = rank.span(host, "operator", 10_000, 50_000, "aten::addmm")
    launch = rank.span(host, "runtime", 20_000, 1_000, "cudaLaunchKernel")
    kernel = rank.span(stream, "kernel", 200_000, 4_000, "gemm")
    rank.add("kernels", span=kernel, device=0, stream=7, launch=launch, operator=inner)
    away = rank.span(host, "operator", 300_000, 10_000, "aten::mm")
    rank.add("operators", span=inner, flops=4_000_000)
    rank.add("operators", span=away, flops=1_000_000)
    rank.add("metadata", key="device_peak_flops", value=json.dumps(flops))
    return rank.tables()


def test_an_operator_takes_the_time_of_the_device_that_it_keeps_busy() -> None:
    host, gpu = roofline(eager()).rows(named=True)
    assert (host["Device_id"], host["Name"], host["Total Time(us)"], host["FLOPs"]) == (
        "cpu",
        "aten::mm",
        10,
        1_000_000,
    )
    assert (gpu["Device_id"], gpu["Name"], gpu["Total Time(us)"], gpu["FLOPs"]) == (
        "cuda:0",
        "aten::addmm",
        4,
        4_000_000,
    )
    # 4 MFLOP in 4 µs, half of 2 TFLOP/s; of bytes nothing is known
    assert gpu["Roofline(%)"] == pytest.approx(50)
    assert (gpu["Bound"], gpu["Intensity(FLOP/B)"], gpu["Attainable(GFLOP/s)"]) == (None, None, None)


@pytest.mark.parametrize(
    "said", ["much", True, None, [1], {"cuda:0": "much"}, {"cuda:0": -1}, {"cuda:0": 0}, 1e308, {}]
)
def test_a_peak_that_is_no_number_says_nothing(said: Any) -> None:
    assert roofline(eager(said))["Peak(GFLOP/s)"].to_list() == [None, None]


def test_a_peak_may_be_one_number_or_one_for_each_device() -> None:
    assert roofline(eager(1e12))["Peak(GFLOP/s)"].to_list() == pytest.approx([1000, 1000])
    assert roofline(eager({"cpu": 5e9}))["Peak(GFLOP/s)"].to_list() == [pytest.approx(5), None]


def test_a_training_step_of_jax_on_a_cpu(shared_data: Path) -> None:
    # Given 200 steps of an MLP, of which a layer has a 256×512 by 512×512 product
    frames = read_files([shared_data / "xplane" / "jax_cpu_mlp.xplane.pb"])
    first = roofline(lazy(frames)).row(0, named=True)
    # Then the backward product of layer 2 takes most time, as long as the profiler's own reader says
    assert (first["Name"], first["Phase"], first["Count"]) == ("ynn_fusion.6", "backward", 200)
    assert first["Scope"] == "jit(step)/transpose(jvp(loss))/layer2/dot_general"
    assert first["Total Time(us)"] == pytest.approx(169_208, abs=1)
    assert first["FLOPs"] == 200 * 2 * 256 * 512 * 512
    assert first["Bytes"] == 200 * 4 * (256 * 512 + 512 * 512 + 256 * 512)
    details = instruction_details(lazy(frames)).rows(named=True)
    assert [(row["Name"], row["Part Of"]) for row in details[:2]] == [
        ("ynn_fusion.6", None),
        ("dot_general.1", "ynn_fusion.6"),
    ]


def test_a_convolution_of_jax_on_a_gpu(shared_data: Path) -> None:
    # Given a convolution that runs as two kernels, on eight devices with their peaks in the capture
    tables = lazy(read_files([shared_data / "xplane" / "jax_mi300_conv.xplane.pb"]))
    found = roofline(tables).filter(pl.col("Name") == "cudnn-conv.1")
    assert found["Device_id"].to_list() == [f"cuda:{number}" for number in range(8)]
    assert found["Count"].to_list() == [5] * 8
    kernels = tables["spans"].filter(pl.col("kind") == "kernel").collect().cast({"name": pl.String})
    both = kernels.filter(pl.col("name").str.contains("^(Im3d2Col|Cijk_)"))
    assert len(both) == 80
    # Of one of these kernels, of 16.08 µs, the profiler does not say what it belongs to
    assert found["Total Time(us)"].sum() == pytest.approx(both["dur"].sum() / 1000 - 16.08)
    row = found.row(0, named=True)
    peak, width = row["Peak(GFLOP/s)"] * 1e9, row["Peak(GB/s)"] * 1e9
    assert row["Bound"] == "memory"
    assert row["FLOPs"] / peak < row["Bytes"] / width
    assert row["Roofline(%)"] == pytest.approx(100 * row["Bytes"] / width / (row["Total Time(us)"] / 1e6))


def test_an_operator_is_on_the_device_on_which_those_inside_it_launch(shared_data: Path) -> None:
    # Given attention that another operator computes, by twelve kernels of 122.848 µs together
    path = shared_data / "kineto" / "tracelens" / "h100" / "Falconsai_nsfw_image_detection__1016002.json.gz"
    found = roofline(lazy(read_files([path])))
    [row] = found.filter(pl.col("Name").str.contains("attention")).rows(named=True)
    assert (row["Device_id"], row["Count"], row["Total Time(us)"]) == ("cuda:0", 12, pytest.approx(122.848))
    # and nothing that a GPU does is work of the host
    assert found["Device_id"].unique().to_list() == ["cuda:0"]


NUMBERS = st.integers(0, 10**15)


@settings(max_examples=SIZE.examples(60))
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(1, 10**9)), min_size=1, max_size=6),
    st.floats(1e6, 1e18),
    st.floats(1e6, 1e18),
)
def test_the_roof_is_the_roof(rows: list[tuple[int, int, int]], flops: float, bandwidth: float) -> None:
    rank = Rank()
    rank.thread()
    stream = rank.stream()
    for number, (operations, moved, dur) in enumerate(rows):
        instruction(rank, number, f"dot.{number}", "dot", flops=operations, bytes=moved)
        run(rank, stream, number, number * 10**10, dur, f"k{number}")
    peaks(rank, flops, bandwidth)
    found = roofline(rank.tables())
    assert found["Total Time(us)"].is_sorted(descending=True)
    assert found["FLOPs"].sum() == sum(operations for operations, _, _ in rows)
    assert found["Bytes"].sum() == sum(moved for _, moved, _ in rows)
    for row in found.rows(named=True):
        if row["Attainable(GFLOP/s)"] is None:  # nothing moves
            assert row["Bytes"] == 0
            continue
        assert row["Attainable(GFLOP/s)"] <= row["Peak(GFLOP/s)"] * (1 + 1e-9)
        if row["FLOPs"]:
            share = 100 * row["Achieved(GFLOP/s)"] / row["Attainable(GFLOP/s)"]
            assert row["Roofline(%)"] == pytest.approx(share)
        bound = row["Achieved(GFLOP/s)"] / row["Peak(GFLOP/s)"] >= row["Achieved(GB/s)"] / row["Peak(GB/s)"] * (
            1 - 1e-9
        )
        assert bound or row["Bound"] == "memory"


def programs() -> Rank:
    """A step of two fusions, one with three parts of which one has parts itself; and a program that did not run."""
    rank = Rank()
    host = rank.thread()
    instruction(rank, 0, "mul.1", "multiply", parent=2, flops=4)
    instruction(rank, 1, "p.1", "parameter", parent=2)
    instruction(rank, 2, "inner.1", parent=4, flops=4)
    instruction(rank, 3, "add.1", "add", parent=4, flops=4, source="train.py:3")
    instruction(rank, 4, "outer.1", flops=8)
    instruction(rank, 5, "short.1", flops=1)
    instruction(rank, 6, "long.1", "dot", flops=1)
    instruction(rank, 7, "elsewhere", program="jit_other", program_id=8)
    for ts, number, dur in ((0, 5, 1_000), (2_000, 4, 5_000), (8_000, 6, 6_000), (20_000, 4, 4_000)):
        run(rank, host, number, ts, dur, "x")
    return rank


def test_instructions_are_followed_by_their_parts_and_the_longest_come_first() -> None:
    found = instruction_details(programs().tables())
    assert found.select("Name", "Part Of", "Count", "Total Time(us)").rows() == [
        ("outer.1", None, 2, 9.0),
        ("inner.1", "outer.1", None, None),
        ("mul.1", "inner.1", None, None),
        ("add.1", "outer.1", None, None),
        ("long.1", None, 1, 6.0),
        ("short.1", None, 1, 1.0),
    ]
    assert found["Source"].to_list()[3] == "train.py:3"


def test_programs_are_listed_even_where_none_ran() -> None:
    rank = programs()
    del rank.rows["operators"]
    found = instruction_details(rank.tables())
    assert set(found["Program"]) == {"jit_step", "jit_other"}
    assert len(found) == 7


def test_an_instruction_that_is_part_of_itself_is_listed() -> None:
    rank = Rank()
    instruction(rank, 0, "a", parent=1)
    instruction(rank, 1, "b", parent=0)
    assert instruction_details(rank.tables())["Name"].to_list() == ["a", "b"]


@settings(max_examples=SIZE.examples(60))
@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=10), st.lists(st.integers(0, 9), max_size=5))
def test_no_instruction_is_lost(parents: list[int | None], ran: list[int]) -> None:
    rank = Rank()
    host = rank.thread()
    for number, parent in enumerate(parents):
        instruction(rank, number, f"i{number}", parent=parent)
    for place, number in enumerate(ran):
        run(rank, host, number, place * 10, 5, "x")
    found = instruction_details(rank.tables())
    if parents and not set(ran) & set(range(len(parents))) and ran:
        assert found.is_empty()
    else:
        assert sorted(found["Name"]) == sorted(f"i{number}" for number in range(len(parents)))
    assert found.filter(pl.col("Count") > 0)["Count"].sum() == sum(number < len(parents) for number in ran)
