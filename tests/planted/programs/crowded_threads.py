"""Torch computes with a thread on each core, on which the loader's workers compute, too; repaired: on one of two."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_parts import perceptron

options = arguments(300)
torch.set_num_threads(1 if options.repaired else 2)


class Points(Dataset[tuple[torch.Tensor, int]]):
    """Points whose first value is computed in Python."""

    def __len__(self) -> int:
        return 32 * 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        point = torch.full((256,), index / 12800)
        point[0] = sum(number * number % 7 for number in range(4000)) % 3
        return point, index % 10


if __name__ == "__main__":
    model = perceptron(1024, 256)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, (x, y) in enumerate(DataLoader(Points(), batch_size=32, num_workers=4)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        tick()
        if step == options.steps:
            break
