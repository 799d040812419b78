"""A new function is compiled in each step; repaired: once."""

import mindspore as ms
import numpy as np
from mindspore import nn
from ticks import arguments, tick

options = arguments(12)
ms.set_device("CPU")
ms.set_seed(0)
net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.SGD(net.trainable_params(), 0.01)
rng = np.random.default_rng(0)
inputs = ms.Tensor(rng.standard_normal((64, 64)).astype(np.float32))
labels = ms.Tensor(rng.integers(0, 10, 64).astype(np.int32))


def forward(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
    return loss_fn(net(x), y)


gradient = ms.value_and_grad(forward, None, optimizer.parameters)


def make() -> object:
    @ms.jit
    def loss_and_gradients(x: ms.Tensor, y: ms.Tensor):  # noqa: ANN202 - the parser of MindSpore reads it
        return gradient(x, y)

    return loss_and_gradients


step_fn = make()
for _ in range(options.steps):
    if not options.repaired:
        step_fn = make()
    loss, gradients = step_fn(inputs, labels)
    optimizer(gradients)
    loss.asnumpy()
    tick()
