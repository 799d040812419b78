"""A graph convolutional network on one citation-like graph: each step is an epoch over all nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

NODES, EDGES, FEATURES, CLASSES, EPOCHS = 2700, 10_800, 500, 7, 200


class Convolution(nn.Module):
    """Adds up the transformed features of the neighbours of each node."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        x = self.linear(x)
        messages = x[edges[0]] * weight[:, None]
        return torch.zeros_like(x).index_add_(0, edges[1], messages) + self.bias


class GCN(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1, self.conv_2 = Convolution(FEATURES, 64), Convolution(64, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        x = functional.relu(self.conv_1(functional.dropout(x, 0.5, self.training), edges, weight))
        return self.conv_2(functional.dropout(x, 0.5, self.training), edges, weight)


def graph() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    labels = torch.randint(0, CLASSES, (NODES,))
    x = (torch.rand(NODES, FEATURES) < 0.02).float()
    x[torch.arange(NODES), labels] += 1
    loops = torch.arange(NODES).repeat(2, 1)
    edges = torch.cat([torch.randint(0, NODES, (2, EDGES)), loops], dim=1)
    degree = torch.bincount(edges[1], minlength=NODES).float()
    weight = (degree[edges[0]] * degree[edges[1]]).rsqrt()
    return x, edges, weight, labels


def main() -> None:
    torch.manual_seed(0)
    x, edges, weight, labels = graph()
    train = torch.rand(NODES) < 0.5
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x, edges, weight)[train], labels[train])
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(x, edges, weight).argmax(1) == labels)[~train].float().mean()
            print(f"epoch {epoch}: loss {loss.item():.4f}, test accuracy {right.item():.4f}")
    print(f"trained {EPOCHS} steps")


if __name__ == "__main__":
    main()
