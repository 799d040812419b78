"""The network is called sample by sample; repaired: once for the batch."""

import mindspore as ms
import numpy as np
from mindspore import nn
from ticks import arguments, tick

options = arguments(40)
ms.set_device("CPU")
ms.set_seed(0)
net = nn.SequentialCell(nn.Dense(64, 64), nn.ReLU(), nn.Dense(64, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
rng = np.random.default_rng(0)
inputs = ms.Tensor(rng.standard_normal((32, 64)).astype(np.float32))
labels = ms.Tensor(rng.integers(0, 10, 32).astype(np.int32))


def forward(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
    if options.repaired:
        return loss_fn(net(x), y)
    total = 0
    for i in range(16):
        total = total + loss_fn(net(x[i : i + 1]), y[i : i + 1])
    return total / 16


gradient = ms.value_and_grad(forward, None, optimizer.parameters)
for _ in range(options.steps):
    loss, gradients = gradient(inputs[:16], labels[:16])
    optimizer(gradients)
    loss.asnumpy()
    tick()
