"""The data set augments each image in Python, value by value; repaired: with array operations."""

import numpy as np
import paddle
from ticks import arguments, tick

options = arguments(120)
paddle.seed(0)


class Photos(paddle.io.Dataset):
    """Images of one channel."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.pixels, self.labels = rng.integers(0, 256, (1024, 784), dtype=np.uint8), rng.integers(0, 10, 1024)

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        row = self.pixels[index]
        if options.repaired:
            return np.minimum(row / np.float32(255), 0.9), self.labels[index]
        return np.array([min(value / 255, 0.9) for value in row.tolist()], dtype=np.float32), self.labels[index]


net = paddle.nn.Sequential(paddle.nn.Linear(784, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 10))
loss_fn = paddle.nn.CrossEntropyLoss()
optimizer = paddle.optimizer.Momentum(0.01, parameters=net.parameters())
loader = paddle.io.DataLoader(Photos(), batch_size=64, shuffle=True)
done = 0
while done < options.steps:
    for x, y in loader:
        loss = loss_fn(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        tick()
        done += 1
        if done == options.steps:
            break
