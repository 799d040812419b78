"""The program updates its parameters itself in PyNative, by Adam; repaired: nn.Adam."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from ticks import arguments, tick

options = arguments(60)
ms.set_device("CPU")
ms.set_seed(0)
rng = np.random.default_rng(0)
layers = [cell for _ in range(8) for cell in (nn.Dense(48, 48), nn.ReLU())]
net, loss_fn = nn.SequentialCell(*layers, nn.Dense(48, 3)), nn.MSELoss()
parameters = net.trainable_params()
means = [ms.Parameter(ops.zeros_like(one), name=f"mean{number}") for number, one in enumerate(parameters)]
squares = [ms.Parameter(ops.zeros_like(one), name=f"square{number}") for number, one in enumerate(parameters)]
optimizer = nn.Adam(parameters, 1e-3) if options.repaired else None
gradient = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, parameters)
inputs = ms.Tensor(rng.standard_normal((32, 48)).astype(np.float32))
labels = ms.Tensor(rng.standard_normal((32, 3)).astype(np.float32))
for _ in range(options.steps):
    loss, gradients = gradient(inputs, labels)
    if optimizer is not None:
        optimizer(gradients)
    else:
        for one, grad, mean, square in zip(parameters, gradients, means, squares, strict=True):
            ops.assign(mean, 0.9 * mean + 0.1 * grad)
            ops.assign(square, 0.999 * square + 0.001 * grad * grad)
            ops.assign(one, one - 1e-3 * mean / (ops.sqrt(square) + 1e-8))
    loss.asnumpy()
    tick()
