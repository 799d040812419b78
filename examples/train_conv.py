"""A small conv net on generated images, trained as anyone would; nothing in it knows stepscope.

python examples/train_conv.py [--steps 40] [--workers 2]
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Stripes(Dataset[tuple[torch.Tensor, int]]):
    """Noisy stripes; the class is the stripes' direction."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        generator = torch.Generator().manual_seed(index)
        axis = torch.linspace(0, 12, 64)
        angle = torch.tensor(label * torch.pi / CLASSES)
        stripes = torch.sin(axis[:, None] * torch.cos(angle) + axis[None, :] * torch.sin(angle))
        image = stripes.expand(3, 64, 64) + 0.5 * torch.randn(3, 64, 64, generator=generator)
        return image, label


def network() -> nn.Module:
    """Four blocks of convolution, normalisation and pooling, and a linear layer."""
    channels = [3, 16, 32, 64, 64]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, CLASSES))


def main() -> None:
    """Train and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    images = Stripes(arguments.steps * arguments.batch)
    for step, (image, label) in enumerate(DataLoader(images, arguments.batch, num_workers=arguments.workers)):
        optimizer.zero_grad()
        loss = loss_function(model(image.to(device)), label.to(device))
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
