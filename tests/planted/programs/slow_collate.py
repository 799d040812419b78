"""The collate function pads token by token in Python; repaired: it copies whole rows."""

import random

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch_parts import TextClassifier

options = arguments(150)
random.seed(0)
sentences = [([random.randrange(1, 5000) for _ in range(random.randint(40, 60))], i % 4) for i in range(1024)]
sentences = [(torch.tensor(tokens), label) for tokens, label in sentences]


def collate(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.tensor([label for _, label in batch])
    if options.repaired:
        return pad_sequence([tokens for tokens, _ in batch], batch_first=True), labels
    longest = max(len(tokens) for tokens, _ in batch)
    padded = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, (tokens, _) in enumerate(batch):
        for column, token in enumerate(tokens):
            padded[row, column] = token
    return padded, labels


model = TextClassifier(width=64)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(sentences, batch_size=16, shuffle=True, collate_fn=collate)
done = 0
while done < options.steps:
    for tokens, label in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), label).backward()
        optimizer.step()
        tick()
        done += 1
        if done == options.steps:
            break
