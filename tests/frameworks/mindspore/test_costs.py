"""Costs of a real MindSpore step: those of its convolution and its product, by the formula; without shapes unknown."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import polars as pl
import pytest
from mindspore import Tensor, nn

import stepscope

BATCH, OUT, STEPS = 4, 32, 3
#: Of one pass: a convolution 3 → 8 with 3 × 3, and a product of what it gives with a matrix.
CONVOLUTION, PRODUCT = 2 * BATCH * 8 * 14 * 14 * 3 * 9, 2 * BATCH * 8 * 14 * 14 * OUT


class Net(nn.Cell):  # type: ignore[misc]
    """A convolution and a dense layer, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=0, has_bias=False)
        self.dense = nn.Dense(8 * 14 * 14, OUT, has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        return self.dense(self.convolution(x).reshape(BATCH, -1))


@pytest.mark.parametrize("shapes", [True, False])
def test_a_step_costs_what_its_products_do(tmp_path: Path, shapes: bool) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net, x = Net(), Tensor(np.ones((BATCH, 3, 16, 16), np.float32))
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    with stepscope.profile(output=tmp_path, record_shapes=shapes, analyse="later", quiet=True) as profile:
        for _ in range(STEPS):
            optimizer(step(x)[1])
            profile.step()
    run = stepscope.open(tmp_path)
    each = run.result("step_efficiency").filter(pl.col("Step").is_not_null())
    # Forward; backward has the gradient of the convolution's weight, and those of both sides of the product
    model = 2 * CONVOLUTION + 3 * PRODUCT if shapes else None
    assert each["Model FLOPs"].to_list() == [model] * STEPS
    assert each["MFU(%)"].to_list() == [None] * STEPS  # the speeds of the machine are not measured for a window in code
    counted = dict(run.result("roofline").select("Name", "FLOPs").rows())
    assert counted["Conv2D"] == STEPS * CONVOLUTION
    assert counted.get("MatMul") == (STEPS * 3 * PRODUCT if shapes else None)
