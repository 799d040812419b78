"""Words become one-hot rows that a ``Linear`` multiplies; repaired: an ``Embedding``."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn

options = arguments(200)
WORDS = 1000


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64) if options.repaired else nn.Linear(WORDS, 64, bias=False)
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens if options.repaired else nn.functional.one_hot(tokens, WORDS).float()
        return self.layers(self.words(rows)).mean(1)


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tokens, labels = torch.randint(0, WORDS, (64, 24)), torch.randint(0, 4, (64,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    optimizer.step()
    tick()
