"""A model of many small operators is trained in PyNative; repaired: mindspore.jit."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from ticks import arguments, tick

options = arguments(60)
ms.set_device("CPU")
ms.set_seed(0)
rng = np.random.default_rng(0)


class Block(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Dense(64, 64), nn.Dense(64, 64), nn.LayerNorm((64,))

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.norm(x + self.second(ops.tanh(self.first(x))))


net = nn.SequentialCell(*[Block() for _ in range(6)], nn.Dense(64, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Adam(net.trainable_params(), 1e-3)
inputs = [ms.Tensor(rng.standard_normal((32, 64)).astype(np.float32)) for _ in range(8)]
labels = [ms.Tensor(rng.integers(0, 10, 32).astype(np.int32)) for _ in range(8)]


def forward(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
    return loss_fn(net(x), y)


gradient = ms.value_and_grad(forward, None, optimizer.parameters)


def train(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
    loss, gradients = gradient(x, y)
    optimizer(gradients)
    return loss


if options.repaired:
    train = ms.jit(train)
for step in range(options.steps):
    train(inputs[step % 8], labels[step % 8]).asnumpy()
    tick()
