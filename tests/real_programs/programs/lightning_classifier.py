"""Lightning: a convolutional classifier of images, with validation after each epoch."""

from __future__ import annotations

import tempfile

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, BATCH = 3, 40, 64


class Classifier(lightning.LightningModule):
    """A small network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _index: int) -> None:
        images, labels = batch
        accuracy = (self(images).argmax(1) == labels).float().mean()
        self.log("val_accuracy", accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader(batches: int, *, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
    labels = torch.randint(0, 10, (batches * BATCH,))
    images = torch.randn(batches * BATCH, 3, 32, 32) + labels[:, None, None, None] / 10
    return DataLoader(TensorDataset(images, labels), BATCH, shuffle=shuffle)


def main() -> None:
    lightning.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            logger=False,
            enable_checkpointing=False,
        )
        trainer.fit(Classifier(), loader(BATCHES, shuffle=True), loader(5, shuffle=False))
    print(f"trained {trainer.global_step} steps")


if __name__ == "__main__":
    main()
