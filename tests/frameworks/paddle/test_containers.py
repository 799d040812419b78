"""Containers, which run a block of operators: loops, branches, the gradient of a program of ``to_static``."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest

import stepscope
from stepscope.run import Run


def kinds(output: Path) -> dict[str, str]:
    """Return the kind of every name in the only run."""
    spans = Run(next(output.iterdir())).ranks[0].tables["spans"].collect()
    return dict(spans.select(spans["name"].cast(str), spans["kind"].cast(str)).rows())


@pytest.mark.filterwarnings("ignore::UserWarning")  # Paddle's own, while it makes the program
def test_a_program_of_to_static(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(8, 8)

    @paddle.jit.to_static(full_graph=True)
    def looped(x: paddle.Tensor, times: paddle.Tensor) -> paddle.Tensor:
        number = paddle.zeros([1], "int64")
        while number < times:
            x = layer(x)
            number += 1
        return x.sum()

    @paddle.jit.to_static(full_graph=True)
    def straight(x: paddle.Tensor) -> paddle.Tensor:
        return layer(x).sum()

    times = paddle.to_tensor([3], dtype="int64")
    looped(paddle.ones([2, 8]), times)
    straight(paddle.ones([2, 8])).backward()
    with stepscope.profile(output=tmp_path, analyse="later", quiet=True) as profile:
        looped(paddle.ones([2, 8]), times)
        straight(paddle.ones([2, 8])).backward()
        profile.step()
    profile.recorded[0].wait()
    found = kinds(tmp_path)
    containers = {
        name: kind for name, kind in found.items() if "while" in name or "Dy2St" in name or "RunProgram" in name
    }
    assert len(containers) >= 2, found
    assert set(containers.values()) == {"annotation"}
    assert found["pd_op.matmul"] == "operator"
