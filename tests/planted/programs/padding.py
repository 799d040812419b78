"""Every batch is padded to 192 tokens, while texts have 20 to 48; repaired: to the longest of the batch."""

import random

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch_parts import TextClassifier

options = arguments(120)
random.seed(0)
torch.manual_seed(0)
texts = [(torch.randint(1, 5000, (random.randint(20, 48),)), number % 4) for number in range(512)]


def collate(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = pad_sequence([tokens for tokens, _ in batch], batch_first=True)
    if not options.repaired:
        tokens = nn.functional.pad(tokens, (0, 192 - tokens.shape[1]))
    return tokens, torch.tensor([label for _, label in batch])


model = TextClassifier(width=64)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(texts, batch_size=16, shuffle=True, collate_fn=collate)
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
