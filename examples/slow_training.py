"""A small image classifier that trains more slowly than it must; docs/first-ten-minutes.md finds out why.

python examples/slow_training.py [--workers 1] [--by-image]
"""

from __future__ import annotations

import argparse
import colorsys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, SIDE = 10, 32


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Generated photographs, kept as bytes of hue, saturation and value, and decoded when they are read."""

    def __init__(self, count: int, decode: Callable[[bytes], torch.Tensor]) -> None:
        random = np.random.default_rng(0)
        self.labels = random.integers(CLASSES, size=count)
        pixels = random.integers(0, 60, size=(count, SIDE, SIDE, 3))
        pixels[..., 0] += 20 * self.labels[:, None, None]
        self.files = [image.astype(np.uint8).tobytes() for image in pixels]
        self.decode = decode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.decode(self.files[index]), int(self.labels[index])


def decode_by_pixel(file: bytes) -> torch.Tensor:
    """Return an image in red, green and blue; Python converts each pixel by itself."""
    pixels = [colorsys.hsv_to_rgb(h / 255, s / 255, v / 255) for h, s, v in zip(*[iter(file)] * 3, strict=True)]
    return torch.tensor(pixels).reshape(SIDE, SIDE, 3).permute(2, 0, 1)


def decode_by_image(file: bytes) -> torch.Tensor:
    """Return the same image; torch converts all pixels at once."""
    hue, saturation, value = torch.frombuffer(bytearray(file), dtype=torch.uint8).reshape(SIDE, SIDE, 3).unbind(-1)
    sector = (hue / 255 * 6 + torch.tensor([5, 3, 1])[:, None, None]) % 6
    return value / 255 * (1 - saturation / 255 * torch.minimum(sector, 4 - sector).clamp(0, 1))


def network() -> nn.Module:
    """Return two blocks of convolution and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, CLASSES)),
    )


def main() -> None:
    """Train, and print the loss and the time of the training loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data beside the training")
    parser.add_argument("--by-image", action="store_true", help="decode all pixels of an image at once")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    photographs = Photographs(20 * arguments.batch, decode_by_image if arguments.by_image else decode_by_pixel)
    loader = DataLoader(photographs, arguments.batch, num_workers=arguments.workers)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    step, began = 0, time.perf_counter()
    for _ in range(arguments.epochs):
        for image, label in loader:
            optimizer.zero_grad()
            loss = loss_function(model(image), label)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step:3d}  loss {loss.item():.3f}")
            step += 1
    print(f"{step} steps in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
