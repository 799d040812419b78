"""Small trainings for the benchmarks; each function returns one training step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

Step = Callable[[], None]


def _trainer(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def mlp() -> Step:
    """Many tiny operators, about 1 µs each: the worst case for a recorder."""
    blocks = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    inputs, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    return _trainer(model, lambda: nn.functional.cross_entropy(model(inputs), labels))


def transformer() -> Step:
    """Two encoder layers on 8 sequences of 32 tokens."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    embedding, head = nn.Embedding(1000, 64), nn.Linear(64, 1000)
    tokens = torch.randint(0, 1000, (8, 32))
    model = nn.Sequential(embedding, encoder, head)
    return _trainer(model, lambda: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))


def convolution() -> Step:
    """Four blocks of convolution, normalisation and pooling on 8 images."""
    channels = [3, 16, 32, 32, 64]
    layers: list[nn.Module] = []
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return _trainer(model, lambda: nn.functional.cross_entropy(model(images), labels))


def compiled() -> Step:
    """Eight compiled blocks on 64 rows: few operators, and the work of Dynamo and Inductor around them."""
    blocks = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU())]
    model = torch.compile(nn.Sequential(*blocks, nn.Linear(128, 10)))
    inputs, labels = torch.randn(64, 128), torch.randint(0, 10, (64,))
    return _trainer(model, lambda: nn.functional.cross_entropy(model(inputs), labels))


def ddp() -> Step:
    """The MLP in several ranks, which add up their gradients by gloo: some buckets of a few hundred bytes each."""
    torch.distributed.init_process_group("gloo")
    blocks = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(64, 10)), bucket_cap_mb=0.05)
    inputs, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    return _trainer(model, lambda: nn.functional.cross_entropy(model(inputs), labels))


def launched(ranks: int) -> list[str]:
    """Return the command that starts so many ranks of a script, before its name."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


WORKLOADS: dict[str, Callable[[], Step]] = {
    "mlp": mlp,
    "transformer": transformer,
    "convolution": convolution,
    "compiled": compiled,
    "ddp": ddp,
}

SWITCHES: dict[str, dict[str, bool]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "shapes+memory": {"record_shapes": True, "profile_memory": True},
    "stacks": {"with_stack": True},
    "all": {
        "record_shapes": True,
        "profile_memory": True,
        "with_stack": True,
        "with_flops": True,
        "with_modules": True,
    },
}
