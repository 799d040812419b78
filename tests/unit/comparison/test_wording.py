"""Names in sentences: short enough for a line, and still those that people know."""

from __future__ import annotations

import pytest

from stepscope.comparison.wording import short_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("void cudnn::dgrad<float, 512>(int, float const*, int (*)(int))", "cudnn::dgrad<float, 512>"),
        ("void at::native::(anonymous namespace)::softmax<float>(float*)", "softmax<float>"),
        ("Default/network/fc1/MatMul-op12", "MatMul"),
        (f"triton_{'x' * 60}", f"triton_{'x' * 40}…"),
        ("Memset (Device)", "Memset (Device)"),
    ],
)
def test_arguments_of_functions_are_left_out_and_long_names_are_cut(name: str, shown: str) -> None:
    assert short_name(name) == shown
