"""A small network trained on several processes (DDP, gloo), as anyone would; `--slow` makes one of them slow.

torchrun --nproc-per-node 4 -m stepscope run examples/train_ranks.py --slow 2 --by compute
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FEATURES, CLASSES = 256, 10


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Noise with a class; a batch of a slow rank takes `seconds` more."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=generator), index % CLASSES


class Filter(nn.Module):
    """A softmax over the features, which a slow rank computes again and again."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.repeats = repeats

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Weigh the features."""
        weights = torch.softmax(features, dim=-1)
        for _ in range(self.repeats):
            weights = torch.softmax(features, dim=-1)
        return features * weights


def main() -> None:
    """Train and print the loss of rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--slow", type=int, metavar="RANK", help="make this rank slow")
    parser.add_argument("--by", choices=("compute", "data"), default="compute", help="what it does longer than others")
    parser.add_argument("--amount", type=float, default=1.0, help="how much longer, as a factor")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    slow = arguments.amount if rank == arguments.slow else 0.0
    seconds = 0.001 * slow if arguments.by == "data" else 0.0
    repeats = round(1000 * slow) if arguments.by == "compute" else 0
    layers = [nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)]
    model = DistributedDataParallel(nn.Sequential(Filter(repeats), *layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    samples = Samples(arguments.steps * arguments.batch * size, seconds)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(samples)
    for step, (features, label) in enumerate(DataLoader(samples, arguments.batch, sampler=sampler)):
        optimizer.zero_grad()
        loss = loss_function(model(features), label)
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
