"""Models and data that several planted programs train."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def perceptron(width: int = 512, inputs: int = 256, outputs: int = 10, depth: int = 3) -> nn.Sequential:
    """Return a multi-layer perceptron."""
    sizes = [inputs, *[width] * depth]
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def convolutions(channels: int = 32, classes: int = 10) -> nn.Sequential:
    """Return a small network for images of 3 × 32 × 32."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Conv2d(2 * channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, classes),
    )


class TextClassifier(nn.Module):
    """A small transformer encoder over tokens."""

    def __init__(self, words: int = 5000, width: int = 128, layers: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the classes."""
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def points(count: int, inputs: int = 256, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Return random inputs and labels."""
    torch.manual_seed(0)
    return torch.randn(count, inputs), torch.randint(0, classes, (count,))


def images(count: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Return random images of 3 × 32 × 32 and labels."""
    torch.manual_seed(0)
    return torch.randn(count, 3, 32, 32), torch.randint(0, classes, (count,))
