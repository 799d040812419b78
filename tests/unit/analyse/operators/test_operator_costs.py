"""Costs of operators from their inputs: against numbers computed by hand, and the peaks they are measured against."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from stepscope.analyse.operators.cost_rules import OperatorCost, OperatorInputs, cost, known_name
from stepscope.analyse.operators.device_peaks import device_peaks
from stepscope.analyse.operators.operator_costs import operator_costs
from stepscope.analyse.operators.roofline import roofline
from stepscope.analyse.operators.step_efficiency import step_efficiency
from tests.unit.analyse.build import Rank


def of(name: str, shapes: list[Any], dtype: str = "float", values: list[str] | None = None) -> OperatorCost | None:
    types = [dtype if shape else "Scalar" for shape in shapes]
    short = known_name(name)
    assert short is not None
    return cost(short, OperatorInputs(shapes, types, values or [""] * len(shapes)))


def conv(transposed: bool = False, groups: int = 1, stride: int = 1) -> list[str]:
    return ["", "", "", f"[{stride}, {stride}]", "[1, 1]", "[1, 1]", str(transposed), "[0, 0]", str(groups)]


CASES: dict[str, tuple[OperatorCost | None, tuple[str, int, int | None]]] = {
    "mm": (of("aten::mm", [[3, 4], [4, 5]]), ("matmul", 2 * 3 * 4 * 5, 4 * (12 + 20 + 15))),
    "addmm in float64": (
        of("aten::addmm", [[5], [3, 4], [4, 5]], "double"),
        ("matmul", 120, 8 * (5 + 12 + 20 + 15)),
    ),
    "bmm in bfloat16": (
        of("aten::bmm", [[2, 3, 4], [2, 4, 5]], "c10::BFloat16"),
        ("matmul", 240, 2 * (24 + 40 + 30)),
    ),
    "mv": (of("aten::mv", [[3, 4], [4]]), ("matmul", 24, 4 * (12 + 4 + 3))),
    "linear of oneDNN": (of("mkldnn::_linear_pointwise", [[2, 3, 4], [5, 4]]), ("matmul", 240, 4 * (24 + 20 + 30))),
    # 3×3 over 8×8 with stride 2 and padding 1 is 4×4
    "convolution": (
        of("aten::convolution", [[2, 3, 8, 8], [6, 3, 3, 3], [6], [], [], [], [], [], []], values=conv(stride=2)),
        ("convolution", 2 * 2 * 16 * 6 * 27, 4 * (384 + 162 + 6 + 2 * 6 * 16)),
    ),
    "grouped": (
        of("aten::convolution", [[1, 4, 8, 8], [8, 2, 3, 3], [], [], [], [], [], [], []], values=conv(groups=2)),
        ("convolution", 2 * 64 * 8 * 2 * 9, 4 * (256 + 144 + 512)),
    ),
    "transposed": (
        of("aten::convolution", [[1, 4, 8, 8], [4, 6, 3, 3], [], [], [], [], [], [], []], values=conv(transposed=True)),
        ("convolution", 2 * 64 * 4 * 6 * 9, 4 * (256 + 216 + 6 * 64)),
    ),
    "convolution backward": (
        of(
            "aten::convolution_backward",
            [[1, 6, 8, 8], [1, 3, 8, 8], [6, 3, 3, 3], [], [], [], [], [], [], [], []],
            values=["", "", "", "[6]", *conv()[3:], "[False, True, True]"],
        ),
        ("convolution", 2 * 64 * 162, 4 * (384 + 192 + 162 + 162)),
    ),
    "attention": (
        of("aten::_scaled_dot_product_flash_attention", [[2, 4, 10, 8], [2, 4, 12, 8], [2, 4, 12, 8]]),
        ("attention", 2 * 2 * 2 * 4 * 10 * 12 * 8, 4 * (640 + 768 + 768 + 640)),
    ),
    "attention backward": (
        of(
            "aten::_scaled_dot_product_flash_attention_backward",
            [[2, 4, 10, 6], [2, 4, 10, 8], [2, 4, 12, 8], [2, 4, 12, 6]],
        ),
        ("attention", 2 * 8 * 120 * (3 * 8 + 2 * 6), 4 * (480 + 640 + 768 + 576 + 640 + 768 + 576)),
    ),
    "layer norm": (
        of("aten::native_layer_norm", [[4, 8], [], [8], [8], []]),
        ("normalisation", 160, 4 * (32 + 16 + 32)),
    ),
    "broadcast": (of("aten::add_", [[4, 1, 8], [3, 8], []]), ("elementwise", 96, 4 * (32 + 24 + 96))),
    "lists of tensors": (of("aten::_foreach_add_", [[[4, 8], [8]], [[4, 8], [8]]]), ("elementwise", 40, None)),
    "sum": (of("aten::sum", [[4, 8], [], []]), ("reduction", 32, 128)),
    "copy": (of("aten::copy_", [[4, 8], [4, 8], []]), ("copy", 0, 256)),
    "fill": (of("aten::zero_", [[4, 8]]), ("copy", 0, 128)),
    "to bfloat16": (of("aten::_to_copy", [[4, 8], []], values=["", "15"]), ("copy", 0, 32 * 6)),
    "relu of MindSpore": (of("ReLU", [[16, 8]], ""), ("elementwise", 128, None)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_costs(case: str) -> None:
    found, (family, flops, moved) = CASES[case]
    assert found is not None
    assert (found.family, found.flops, found.bytes) == (family, flops, moved)


def test_an_embedding_reads_the_rows_that_are_asked_for() -> None:
    found = cost("embedding", OperatorInputs([[50_000, 16], [4, 10]], ["float", "long int"], ["", ""]))
    assert found == OperatorCost("embedding", "float32", 0, 40 * (2 * 16 * 4 + 8))
    back = cost(
        "embedding_dense_backward", OperatorInputs([[4, 10, 16], [4, 10]], ["float", "long int"], ["", "", "50000"])
    )
    assert back == OperatorCost("embedding", "float32", 640, 4 * 640 + 8 * 40 + 4 * (50_000 * 16 + 640))


ODD: list[tuple[str, list[Any], list[str]]] = [
    ("mm", [], []),
    ("mm", [[3, 4], [5, 6]], ["float", "float"]),
    ("mm", [[3, 4], "x"], ["float", "float"]),
    ("mm", [[1 << 40, 1 << 40], [1 << 40, 4]], ["float", "float"]),
    ("convolution", [[1, 3, 8, 8], [6, 3, 3, 3]], ["float", "float"]),
    ("embedding", [[4], [4]], ["float", "long int"]),
    ("add", [[], []], ["Scalar", "Scalar"]),
    ("_scaled_dot_product_flash_attention", [[1, 2], [1, 2], [1, 2]], ["float"] * 3),
]


@pytest.mark.parametrize(("name", "shapes", "types"), ODD)
def test_inputs_that_do_not_say_it_say_nothing(name: str, shapes: list[Any], types: list[str]) -> None:
    assert cost(name, OperatorInputs(shapes, types, [])) is None


def operator(
    rank: Rank, place: tuple[int, int, int], name: str, shapes: Any = None, dtype: str = "float", **more: Any
) -> int:
    """Add an operator at a place: track, start and duration."""
    track, ts, dur = place
    span = rank.span(track, "operator", ts, dur, name, step=0)
    types = None if shapes is None else json.dumps([dtype if shape else "Scalar" for shape in shapes])
    shown = None if shapes is None else json.dumps(shapes)
    rank.add("operators", span=span, shapes=shown, dtypes=types, **({"flops": None, "concrete": None} | more))
    return span


def speeds(rank: Rank, **products: float) -> None:
    listed = {name: {"flops_per_s": speed, "size": 1024} for name, speed in products.items()}
    cpu = {"device": "cpu", "products": {**listed, "float16": None}, "copy_bytes_per_s": 1e10, "call_ns": 500}
    rank.add("metadata", key="machine.speeds", value=json.dumps([cpu]))


def doubles() -> Rank:
    """A step of 100 µs with a product in float64 and one in float32, on a machine of 20 and 50 GFLOP/s."""
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 100_000)
    outer = operator(rank, (host, 0, 50_000), "aten::linear")
    assert outer == 0
    operator(rank, (host, 1_000, 40_000), "aten::mm", [[50, 80], [80, 100]], "double")
    operator(rank, (host, 60_000, 20_000), "aten::mm", [[50, 80], [80, 100]])
    operator(rank, (host, 85_000, 10_000), "aten::add", [[100, 100], [100, 100]])
    speeds(rank, float32=5e10, float64=2e10)
    return rank


def test_a_product_in_float64_is_held_back_by_its_type() -> None:
    found = roofline(doubles().tables())
    slow, fast, add = found.rows(named=True)
    assert (slow["Type"], slow["FLOPs"], slow["Achieved(GFLOP/s)"]) == ("float64", 800_000, pytest.approx(20))
    assert (slow["Roofline(%)"], slow["Of float32(%)"]) == (pytest.approx(100), pytest.approx(40))
    assert (slow["Held Back By"], slow["Peak From"], slow["Bound"]) == ("float64", "measured", "compute")
    assert (fast["Type"], fast["Of float32(%)"], fast["Held Back By"]) == ("float32", pytest.approx(80), None)
    assert (add["Family"], add["Bound"], add["Held Back By"]) == ("elementwise", "memory", None)


def test_what_a_step_uses_and_what_bounds_it() -> None:
    whole, step = step_efficiency(doubles().tables()).rows(named=True)
    assert (whole["Step"], step["Step"]) == (None, 0)
    assert (step["Model FLOPs"], step["Other FLOPs"]) == (1_600_000, 10_000)
    # 40 µs at 20 and 16 µs at 50 GFLOP/s are 56 of 100 µs
    assert step["MFU(%)"] == pytest.approx(56)
    assert step["Peak(GFLOP/s)"] == pytest.approx(1600 / 56)
    assert (step["Compute Bound(us)"], step["Memory Bound(us)"]) == (pytest.approx(56), pytest.approx(12))
    # Three outermost operators of 0.5 µs
    assert (step["Calls(us)"], step["Other(us)"]) == (pytest.approx(1.5), pytest.approx(30.5))
    assert step["Bound"] == "compute"
    assert whole["MFU(%)"] == step["MFU(%)"]


def test_one_product_of_unknown_cost_leaves_the_step_unknown() -> None:
    rank = doubles()
    operator(rank, (0, 96_000, 1_000), "aten::bmm")
    found = step_efficiency(rank.tables())
    for name in ("Model FLOPs", "MFU(%)", "Achieved(GFLOP/s)", "Bound"):
        assert found[name].null_count() == len(found), name


@pytest.mark.parametrize(
    ("name", "flops", "model"),
    [("MatMul", None, None), ("MatMul", 500_000, 2_100_000), ("Conv2D", None, None), ("Tile", None, 1_600_000)],
)
def test_a_product_that_only_its_source_can_count(name: str, flops: int | None, model: int | None) -> None:
    rank = doubles()
    operator(rank, (0, 96_000, 3_000), name, flops=flops)
    assert step_efficiency(rank.tables())["Model FLOPs"].to_list() == [model] * 2
    # around one whose inputs say it, it says nothing
    rank = doubles()
    operator(rank, (0, 58_000, 24_000), "aten::matmul", [[50, 80], [80, 100]])
    assert step_efficiency(rank.tables())["Model FLOPs"].to_list() == [1_600_000] * 2


@pytest.mark.parametrize(
    ("shapes", "flops", "moved"),
    [
        ([[32, 256], [512, 256], []], 2 * 32 * 256 * 512, 4 * (32 * 256 + 512 * 256 + 32 * 512)),
        ([[256, 32], [256, 512]], 2 * 32 * 256 * 512, 4 * (32 * 256 + 512 * 256 + 32 * 512)),
        ([[4, 8, 32], [4, 32, 16]], 2 * 4 * 8 * 32 * 16, 4 * (4 * 8 * 32 + 4 * 32 * 16 + 4 * 8 * 16)),
        ([[4, 8, 32], [32, 16]], 2 * 4 * 8 * 32 * 16, 4 * (4 * 8 * 32 + 32 * 16 + 4 * 8 * 16)),
        ([[0, 256], [256, 512]], 0, None),
    ],
    ids=["second turned", "first turned", "batch", "one matrix for a batch", "empty"],
)
def test_bytes_of_a_product_follow_from_its_operations(shapes: list[list[int]], flops: int, moved: int | None) -> None:
    """Given a product of MindSpore, whose inputs do not say which side is transposed."""
    rank = Rank()
    span = rank.span(rank.thread(), "operator", 0, 1_000, "MatMul")
    said = {"shapes": json.dumps(shapes), "dtypes": json.dumps(["Float32", "Float32", "Scalar"])}
    rank.add("operators", span=span, flops=flops, **said)
    [found] = operator_costs(rank.tables()).rows(named=True)
    known = (found["flops"], found["bytes"], found["dtype"])
    assert known == (flops, moved, None if moved is None else "float32")


def test_the_outermost_operator_counts_once() -> None:
    rank = Rank()
    host = rank.thread()
    rank.step(0, 0, 1_000)
    values = json.dumps(conv())
    shapes = [[1, 3, 8, 8], [6, 3, 3, 3], [], [], [], [], [], [], []]
    operator(rank, (host, 0, 900), "aten::conv2d", shapes[:2], flops=777)
    for depth, name in enumerate(("aten::convolution", "aten::_convolution"), 1):
        operator(rank, (host, depth, 900 - 2 * depth), name, shapes, concrete=values)
    found = operator_costs(rank.tables())
    # What the source counts of conv2d does not say its bytes; the convolution inside does
    assert found.select("row", "family", "flops").rows() == [(1, "convolution", 2 * 64 * 162)]


def peaks_of(**facts: Any) -> Any:
    rank = Rank()
    rank.thread()
    rank.stream(device="cuda:0")
    for key, value in facts.items():
        rank.add(
            "metadata", key=key.replace("_state", ".state").replace("machine_", "machine."), value=json.dumps(value)
        )
    return device_peaks(rank.tables())["cuda:0"]


def test_known_gpus_have_the_peaks_of_their_data_sheets() -> None:
    peaks = peaks_of(deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])
    assert (peaks.source, peaks.bandwidth) == ("data sheet", 3.35e12)
    assert peaks.flops("bfloat16", "matmul") == pytest.approx(989.4e12)
    assert peaks.flops("float32", "matmul") == pytest.approx(67e12)
    # Convolutions use TF32 unless the program turns it off
    assert peaks.flops("float32", "convolution") == pytest.approx(494.7e12)
    gpu = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    state = {"tf32_cudnn": False, "tf32_matmul": True}
    peaks = peaks_of(deviceProperties=gpu, torch_state=state)
    assert (peaks.flops("float32", "convolution"), peaks.flops("float32", "matmul")) == (19.5e12, 156e12)
    assert peaks.bandwidth == 2.039e12


def test_what_the_source_says_comes_first_and_unknown_gpus_are_as_measured() -> None:
    gpu, speed = [{"id": 0, "name": "X1"}], {"device": "cuda", "products": {"float32": {"flops_per_s": 7e12}}}
    assert peaks_of(deviceProperties=[{"id": 0, "name": "V100"}], device_peak_flops=5e12).flops("float64") == 5e12
    measured = peaks_of(deviceProperties=gpu, machine_speeds=[speed])
    assert (measured.source, measured.flops(None), measured.flops("float64")) == ("measured", 7e12, None)
    assert peaks_of(deviceProperties=gpu).source == ""


def test_speeds_that_other_processes_disturbed_are_said_to_be_that() -> None:
    alone = {"one_core": {"float32": {"flops_per_s": 9e12}}}
    busy = {"device": "cuda", "products": {"float32": {"flops_per_s": 7e12}}, "disturbed": True}
    assert peaks_of(machine_speeds=[busy]).source == "measured while busy"
    assert peaks_of(machine_speeds=[busy, {**busy, "disturbed": False}]).source == "measured"
    # What one core does by CPU time, the machine does
    assert peaks_of(machine_speeds=[{**busy, **alone}]).flops("float32") == 9e12


@pytest.mark.parametrize(
    "said", [1, "x", [], [1], [{"device": "cuda"}], [{"device": "cuda", "products": {"float32": {"flops_per_s": "x"}}}]]
)
def test_facts_that_say_nothing_say_nothing(said: Any) -> None:
    peaks = peaks_of(machine_speeds=said, deviceProperties=said, torch_state=said)
    assert (peaks.source, peaks.flops("float32"), peaks.bandwidth) == ("", None, None)


def test_kernels_without_operators_leave_the_step_unknown() -> None:
    rank = Rank()
    host, stream = rank.thread(), rank.stream()
    rank.step(0, 0, 100_000)
    product = operator(rank, (host, 0, 5_000), "aten::mm", [[50, 80], [80, 100]])
    for place, owner in enumerate((product, None)):
        kernel = rank.span(stream, "kernel", 10_000 + 20_000 * place, 10_000, "gemm", step=0)
        rank.add("kernels", span=kernel, device=0, operator=owner)
    rank.add("metadata", key="device_peak_flops", value="1e12")
    found = step_efficiency(rank.tables()).filter(pl.col("Device_id") == "cuda:0")
    assert found["MFU(%)"].to_list() == [None, None]
    rank.rows["kernels"].pop()
    rank.rows["spans"].pop()
    found = step_efficiency(rank.tables()).filter(pl.col("Device_id") == "cuda:0")
    assert found["MFU(%)"].to_list() == pytest.approx([0.8, 0.8])
