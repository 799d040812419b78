"""A recommendation model after DLRM: embeddings of categories, interactions, two perceptrons."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, DENSE, WIDTH = 150, 256, 13, 32
ROWS = (20_000, 10_000, 5_000, 1_000, 500, 100, 50, 10)


class Clicks(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Numbers, categories and whether the advertisement was clicked."""

    def __init__(self, count: int) -> None:
        self.dense = torch.rand(count, DENSE)
        self.sparse = torch.stack([torch.randint(0, rows, (count,)) for rows in ROWS], dim=1)
        self.clicked = (torch.rand(count) < 0.3).float()

    def __len__(self) -> int:
        return len(self.clicked)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.log1p(self.dense[index]), self.sparse[index], self.clicked[index]


def perceptron(sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True) for rows in ROWS)
        self.bottom = perceptron((DENSE, 256, 64, WIDTH))
        pairs = (len(ROWS) + 1) * len(ROWS) // 2
        self.top = perceptron((WIDTH + pairs, 256, 128, 1))
        self.register_buffer("pairs", torch.tril_indices(len(ROWS) + 1, len(ROWS) + 1, -1), persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = [table(sparse[:, at : at + 1]) for at, table in enumerate(self.tables)]
        all_rows = torch.stack([bottom, *rows], dim=1)
        products = torch.bmm(all_rows, all_rows.transpose(1, 2))
        lower = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, lower], dim=1)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Clicks(BATCH * STEPS), BATCH, shuffle=True)
    model = DLRM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.BCEWithLogitsLoss()
    for step, (dense, sparse, clicked) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = criterion(model(dense, sparse), clicked)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(f"trained {step} steps")


if __name__ == "__main__":
    main()
