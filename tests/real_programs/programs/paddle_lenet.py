"""LeNet on Paddle, trained by a loop of its own over a DataLoader."""

from __future__ import annotations

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset
from paddle.vision.models import LeNet

EPOCHS, BATCHES, BATCH = 2, 60, 64


class Digits(Dataset):
    """Images of digits, normalised when they are read."""

    def __init__(self, count: int) -> None:
        super().__init__()
        source = np.random.default_rng(0)
        self.labels = source.integers(0, 10, count)
        self.images = source.integers(0, 255, (count, 28, 28), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        image = (self.images[index].astype(np.float32) - 127.5) / 127.5
        return image[None], self.labels[index : index + 1]


def main() -> None:
    paddle.seed(0)
    loader = DataLoader(Digits(BATCHES * BATCH), batch_size=BATCH, shuffle=True)
    model = LeNet()
    optimizer = paddle.optimizer.Adam(learning_rate=1e-3, parameters=model.parameters())
    model.train()
    trained = 0
    for epoch in range(EPOCHS):
        for index, (images, labels) in enumerate(loader()):
            predictions = model(images)
            loss = paddle.nn.functional.cross_entropy(predictions, labels)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            trained += 1
            if index % 30 == 0:
                accuracy = paddle.metric.accuracy(predictions, labels)
                print(f"epoch {epoch} batch {index}: loss {float(loss):.4f} accuracy {float(accuracy):.4f}")
    print(f"trained {trained} steps")


if __name__ == "__main__":
    main()
