"""LeNet on MindSpore, trained by Model.train on images of digits."""

from __future__ import annotations

from collections.abc import Iterator

import mindspore
import numpy as np
from mindspore import nn
from mindspore.train import Accuracy, LossMonitor, Model

EPOCHS, BATCHES, BATCH = 2, 60, 32


class LeNet5(nn.Cell):
    """The network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, 10)

    def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(self.flatten(x)))
        return self.fc3(self.relu(self.fc2(x)))


def digits() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    source = np.random.default_rng(0)
    for _ in range(BATCHES * BATCH):
        label = source.integers(10)
        yield (source.random((1, 32, 32)) + label / 10).astype(np.float32), np.array(label, np.int32)


def main() -> None:
    mindspore.set_seed(0)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    data = mindspore.dataset.GeneratorDataset(list(digits()), ["image", "label"], shuffle=True).batch(
        BATCH, drop_remainder=True
    )
    network = LeNet5()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    model = Model(network, loss, optimizer, {"accuracy": Accuracy()})
    model.train(EPOCHS, data, callbacks=[LossMonitor(30)], dataset_sink_mode=False)
    print(f"trained {EPOCHS * BATCHES} steps")


if __name__ == "__main__":
    main()
