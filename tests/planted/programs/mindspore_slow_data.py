"""The pipeline's map computes in Python, value by value; repaired: with array operations."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from ticks import arguments, tick

options = arguments(100)
ms.set_device("CPU")
ms.set_seed(0)
rng = np.random.default_rng(0)
columns = {"x": rng.integers(0, 256, (1024, 784), dtype=np.uint8), "y": rng.integers(0, 10, 1024).astype(np.int32)}


def prepare(row: np.ndarray) -> np.ndarray:
    if options.repaired:
        return row.astype(np.float32) / 255 - 0.5
    return np.array([min(value / 255, 0.9) - 0.5 for value in row.tolist()], dtype=np.float32)


data = ds.NumpySlicesDataset(columns, shuffle=True).map(prepare, "x", num_parallel_workers=1).batch(64)
net = nn.SequentialCell(nn.Dense(784, 128), nn.ReLU(), nn.Dense(128, 10))
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.SGD(net.trainable_params(), 0.01)
gradient = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
done = 0
while done < options.steps:
    for x, y in data.create_tuple_iterator(num_epochs=1):
        loss, gradients = gradient(x, y)
        optimizer(gradients)
        loss.asnumpy()
        tick()
        done += 1
        if done == options.steps:
            break
