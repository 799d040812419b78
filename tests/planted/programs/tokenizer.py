"""Texts are cut into words in the training loop; repaired: once, before it."""

import random
import re

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(200)
random.seed(0)
words = [f"word{number}" for number in range(4000)]
vocabulary = {word: number + 1 for number, word in enumerate(words)}
texts = [" ".join(random.choices(words, k=64)) + "." for _ in range(512)]


def tokenize(text: str) -> list[int]:
    tokens = []
    for word in re.findall(r"[a-z]+|[0-9]+|\.", text.lower()):
        for end in range(len(word), 0, -1):
            if word[:end] in vocabulary or end == 1:
                tokens.append(vocabulary.get(word[:end], hash(word[:end]) % 4000 + 1))
                break
    return tokens[:64]


def encode(batch: list[str]) -> torch.Tensor:
    rows = [tokenize(text) for text in batch]
    return torch.tensor([row + [0] * (64 - len(row)) for row in rows])


prepared = [encode(texts[start : start + 32]) for start in range(0, 512, 32)] if options.repaired else []
model = TextClassifier(width=64, layers=1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
labels = torch.arange(512) % 4
for step in range(options.steps):
    start = step % 16 * 32
    tokens = prepared[step % 16] if options.repaired else encode(texts[start : start + 32])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), labels[start : start + 32]).backward()
    optimizer.step()
    tick()
