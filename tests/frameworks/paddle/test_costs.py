"""Costs of a real Paddle step: those of its convolution and its products, by the formula; without shapes unknown."""

from __future__ import annotations

from pathlib import Path

import paddle
import polars as pl
import pytest
from paddle import nn

import stepscope

BATCH, WIDTH, OUT, STEPS = 4, 8 * 14 * 14, 32, 3
#: Of one pass: a convolution 3 → 8 with 3 × 3, a layer, and two products with a square matrix.
CONVOLUTION, PRODUCT, SQUARE = 2 * BATCH * 8 * 14 * 14 * 3 * 9, 2 * BATCH * WIDTH * OUT, 2 * BATCH * OUT * OUT


@pytest.mark.parametrize("shapes", [True, False])
def test_a_step_costs_what_its_products_do(tmp_path: Path, shapes: bool) -> None:
    net = nn.Sequential(nn.Conv2D(3, 8, 3), nn.Flatten(), nn.Linear(WIDTH, OUT))
    square = paddle.create_parameter([OUT, OUT], "float32")
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*net.parameters(), square])
    x = paddle.ones([BATCH, 3, 16, 16])
    before = paddle._C_ops.matmul, paddle.Tensor.__matmul__
    with stepscope.profile(output=tmp_path, record_shapes=shapes, analyse="later", quiet=True) as profile:
        for _ in range(STEPS):
            out = paddle.matmul(net(x) @ square, square, transpose_y=True)
            with paddle.no_grad():
                paddle.matmul(out, square)
            out.sum().backward()
            optimizer.step()
            optimizer.clear_grad()
            profile.step()
    assert (paddle._C_ops.matmul, paddle.Tensor.__matmul__) == before
    run = stepscope.open(tmp_path)
    each = run.result("step_efficiency").filter(pl.col("Step").is_not_null())
    # Forward, a product without gradients, and backward: one gradient of the convolution, two of each product
    model = 2 * CONVOLUTION + 3 * PRODUCT + 7 * SQUARE if shapes else None
    assert each["Model FLOPs"].to_list() == [model] * STEPS
    counted = dict(run.result("roofline").select("Name", "FLOPs").rows())
    costs = {
        "conv2d dygraph": CONVOLUTION,
        "Global_Conv2dGradNodeFinal": CONVOLUTION,
        "matmul dygraph": PRODUCT + 3 * SQUARE,
        "Global_MatmulGradNode": 2 * PRODUCT + 4 * SQUARE,
    }
    assert counted == ({name: STEPS * cost for name, cost in costs.items()} if shapes else {})
    names = run.tables["spans"].collect()["name"].cast(pl.String)
    assert not names.str.contains("inputs").any()


def test_compiled_code_runs_as_it_does_without_a_recording(tmp_path: Path) -> None:
    layer = nn.Linear(8, 8)

    @paddle.jit.to_static  # type: ignore[untyped-decorator]
    def forward(x: paddle.Tensor) -> paddle.Tensor:
        return layer(x) @ layer.weight

    x = paddle.ones([4, 8])
    with stepscope.profile(output=tmp_path, record_shapes=True, analyse="later", quiet=True) as profile:
        for _ in range(STEPS):
            inside = forward(x)
            profile.step()
    assert (inside.numpy() == forward(x).numpy()).all()
    assert (inside.numpy() == (layer(x) @ layer.weight).numpy()).all()


@pytest.mark.parametrize(
    ("layer", "shape", "flops"),
    [
        (nn.Conv1D(4, 6, 3), [2, 4, 20], 2 * 2 * 6 * 18 * 4 * 3),
        (nn.Conv2D(8, 8, 3, groups=8, dilation=2), [2, 8, 12, 12], 2 * 2 * 8 * 8 * 8 * 9),
        (nn.Conv3D(2, 4, 3, groups=2), [2, 2, 8, 8, 8], 2 * 2 * 4 * 6**3 * 27),
    ],
)
def test_each_convolution_costs_the_same_forward_and_for_its_weight(
    tmp_path: Path, layer: nn.Layer, shape: list[int], flops: int
) -> None:
    x = paddle.ones(shape)
    with stepscope.profile(output=tmp_path, record_shapes=True, analyse="later", quiet=True) as profile:
        for _ in range(STEPS):
            layer(x).sum().backward()
            layer.clear_gradients()
            profile.step()
    assert stepscope.open(tmp_path).result("roofline")["FLOPs"].to_list() == [STEPS * flops] * 2


@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv2DTranspose(4, 2, 3), [2, 4, 8, 8]), (nn.LSTM(4, 8), [2, 5, 4])])
def test_a_step_with_a_product_of_unknown_cost_has_no_sum(tmp_path: Path, layer: nn.Layer, shape: list[int]) -> None:
    x, known = paddle.ones(shape), nn.Linear(4, 4)
    with stepscope.profile(output=tmp_path, record_shapes=True, analyse="later", quiet=True) as profile:
        for _ in range(STEPS):
            layer(x)
            known(paddle.ones([2, 4]))
            profile.step()
    assert stepscope.open(tmp_path).result("step_efficiency")["Model FLOPs"].to_list() == [None] * (STEPS + 1)
