"""Double precision, half precisions and denormal numbers are told by types, sizes and speeds of operators."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import Training

PRODUCT = [[256, 512], [512, 512]]
#: Its operations in ns at 20 GFLOP/s.
AT_20 = 2 * 256 * 512 * 512 / 20


@pytest.mark.parametrize(("kind", "causes"), [("double", ["double-precision"]), ("float", [])])
def test_double_precision_saves_half_of_its_operators(kind: str, causes: list[str]) -> None:
    training = Training()
    training.call("aten::mm", 8_000_000, PRODUCT, dtypes=[kind, kind])
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(4_000_000, rel=0.01) for finding in found)


@pytest.mark.parametrize(
    ("profiler", "said", "facts", "causes"),
    [
        ("xplane", {"dtypes": ["f64"]}, {}, ["double-precision"]),
        ("xplane", {"dtypes": ["f32"]}, {}, []),
        ("ms", {"dtypes": ["Float64", "Float64"]}, {}, ["double-precision"]),
        ("paddle.profiler", {}, {"float64": 900, "float32": 100}, ["double-precision"]),
        ("paddle.profiler", {}, {"float32": 900}, []),
    ],
)
def test_double_precision_is_told_of_each_framework(
    profiler: str, said: dict[str, list[str]], facts: dict[str, int], causes: list[str]
) -> None:
    training = Training(paddle__state={"models": [{"elements_by_dtype": facts}]})
    training.rank.rows["metadata"] = training.rank.rows["metadata"][1:]
    training.rank.add("metadata", key="profiler", value=f'"{profiler}"')
    training.call("MatMul", 8_000_000, PRODUCT, "forward", **said)
    assert training.causes() == causes


def test_what_this_machine_computes_decides_the_gain() -> None:
    one_core = {"float32": {"flops_per_s": 1e11, "size": 1024}, "float64": {"flops_per_s": 4e10, "size": 1024}}
    training = Training(machine__speeds=[{"framework": "torch", "one_core": one_core}])
    training.call("aten::mm", 8_000_000, PRODUCT, dtypes=["double", "double"])
    [finding] = training.findings()
    assert finding.gain_ns == pytest.approx(0.6 * 8_000_000, rel=0.01)


def test_products_of_paddle_that_single_precision_makes_no_faster_save_nothing() -> None:
    # Given a machine whose products in double precision are the faster ones, and a tanh, which is made number by number
    one_core = {"float32": {"flops_per_s": 2e10, "size": 512}, "float64": {"flops_per_s": 2.7e10, "size": 512}}
    state = {"models": [{"elements_by_dtype": {"float64": 900}}]}
    training = Training(paddle__state=state, machine__speeds=[{"framework": "paddle", "one_core": one_core}])
    training.rank.rows["metadata"] = training.rank.rows["metadata"][1:]
    training.rank.add("metadata", key="profiler", value='"paddle.profiler"')
    training.call("matmul dygraph", 5_000_000, phase="forward")
    training.call("tanh dygraph", 2_000_000, phase="forward")
    [finding] = training.findings()
    assert finding.gain_ns == pytest.approx(0.95 * 2_000_000, rel=0.01)


def test_small_numbers_in_double_precision_are_no_matter() -> None:
    training = Training()
    training.call("aten::add", 8_000_000, [[16], [16]], dtypes=["double", "double"])
    assert training.causes() == []


@pytest.mark.parametrize(("slower", "causes"), [(3.0, ["slow-half-precision"]), (1.5, [])])
def test_half_precision_is_told_where_it_is_slower_than_single(slower: float, causes: list[str]) -> None:
    training = Training()
    training.call("aten::mm", round(slower * AT_20 / 2), [[128, 512], [512, 512]], dtypes=["c10::Half"] * 2)
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(AT_20, rel=0.02) for finding in found)


@pytest.mark.parametrize(("state", "causes"), [({}, ["denormal-numbers"]), ({"flush_denormal": True}, [])])
def test_a_product_much_slower_than_others_may_have_denormal_numbers(state: dict[str, bool], causes: list[str]) -> None:
    training = Training(torch__state=state)
    training.call("aten::mm", 400_000, PRODUCT, dtypes=["float", "float"])
    training.call("aten::mm", 6_000_000, [[256, 512], [512, 511]], dtypes=["float", "float"])
    assert training.causes() == causes


def test_a_product_with_a_sparse_matrix_tells_no_speed() -> None:
    training = Training()
    strides = [[512, 1], []]
    training.call("aten::mm", 100_000, [[256, 512], [512, 512]], dtypes=["float", "float"], strides=strides)
    training.call("aten::mm", 6_000_000, PRODUCT, dtypes=["float", "float"], strides=[[512, 1], [512, 1]])
    assert training.causes() == []


@pytest.mark.parametrize(
    ("dur", "strides", "causes"),
    [(3_000_000, [512, 1], ["denormal-numbers"]), (400_000, [512, 1], []), (3_000_000, [1, 512], [])],
    ids=["slow", "of its size", "scattered in memory"],
)
def test_a_product_of_elements_much_slower_than_others_may_have_denormal_numbers(
    dur: int, strides: list[int], causes: list[str]
) -> None:
    training = Training()
    said = {"dtypes": ["float", "float"], "strides": [strides, []]}
    training.call("aten::mul", dur, [[1024, 512], []], **said)
    training.call("aten::relu", 150_000, [[1024, 512]], dtypes=["float"], strides=[[512, 1]])
    training.call("aten::mul", 100_000, [[64, 512], []], **said)  # slower than others, no slower than memory
    assert training.causes() == causes
