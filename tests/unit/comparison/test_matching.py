"""Which part of A is which part of B."""

from __future__ import annotations

import pytest

from stepscope.comparison.matching import OTHER_SHAPES, SAME, SAME_PLACE, match, plain_name
from stepscope.comparison.parts import PartKey, StepPartLevel


def part(name: str, shapes: str = "[[8]]", phase: str = "forward", scope: str = "") -> StepPartLevel:
    return StepPartLevel(PartKey("host", phase, scope, name, shapes), 1000.0, 1.0, 1.0, False)


def how(a: list[StepPartLevel], b: list[StepPartLevel]) -> list[tuple[str, list[str], list[str]]]:
    pairs = match(a, b).pairs
    return [(pair.how, [one.key.name for one in pair.a], [one.key.name for one in pair.b]) for pair in pairs]


def test_a_program_matches_itself_completely() -> None:
    parts = [part("aten::mm"), part("aten::relu"), part("aten::mm", "[[4]]", "backward")]
    found = match(parts, parts)
    assert [pair.how for pair in found.pairs] == [SAME] * 3
    assert (found.only_a, found.only_b) == ((), ())


def test_another_batch_size_has_other_shapes() -> None:
    found = how([part("aten::mm", "[[8,8]]")], [part("aten::mm", "[[16,8]]")])
    assert found == [(OTHER_SHAPES, ["aten::mm"], ["aten::mm"])]


def test_what_stands_in_the_place_of_another_is_that() -> None:
    a = [part("aten::mm"), part("aten::relu"), part("aten::add")]
    b = [part("aten::mm"), part("aten::gelu"), part("aten::add")]
    assert (SAME_PLACE, ["aten::relu"], ["aten::gelu"]) in how(a, b)


def test_fused_steps_of_an_optimizer_stand_in_the_place_of_many() -> None:
    names = ["aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"]
    a = [part("aten::mm"), *(part(name, phase="optimizer") for name in names)]
    b = [part("aten::mm"), part("aten::_fused_adam_", phase="optimizer")]
    assert (SAME_PLACE, names, ["aten::_fused_adam_"]) in how(a, b)


def test_places_of_different_phases_are_not_one() -> None:
    found = match([part("aten::relu")], [part("aten::gelu", phase="backward")])
    assert not found.pairs
    assert [one.key.name for one in found.only_a] == ["aten::relu"]
    assert [one.key.name for one in found.only_b] == ["aten::gelu"]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("void cutlass::Kernel<sm80_xmma<float, 3>>", "void cutlass::Kernel<sm90_xmma<half>>"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_64x64_tn"),
        ("fusion.12", "fusion.7"),
        ("triton_poi_fused_add_3", "triton_poi_fused_add_11"),
    ],
)
def test_names_are_compared_without_what_compilers_put_in(name: str, other: str) -> None:
    assert plain_name(name) == plain_name(other)


def test_names_of_operators_stay() -> None:
    for name in ("aten::conv2d", "aten::_foreach_add_", "my_op_3", "aten::add", "aten::copy_"):
        assert plain_name(name) == name
