"""The head of a masked language model computes logits of all tokens; repaired: of those that have a label."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn import functional

options = arguments(40)
torch.manual_seed(0)

WORDS, WIDTH, MASK = 8000, 64, 1
embedding = nn.Embedding(WORDS, WIDTH)
layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, batch_first=True, dropout=0.0)
encoder = nn.TransformerEncoder(layer, 2)
head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
optimizer = torch.optim.AdamW([*embedding.parameters(), *encoder.parameters(), *head.parameters()])
tokens = torch.randint(2, WORDS, (8, 16, 48))
chosen = torch.rand(tokens.shape) < 0.15
labels = torch.where(chosen, tokens, -100)
tokens = torch.where(chosen, MASK, tokens)
for step in range(options.steps):
    hidden, wanted = encoder(embedding(tokens[step % 8])), labels[step % 8]
    if options.repaired:
        hidden, wanted = hidden[wanted != -100], wanted[wanted != -100]
    optimizer.zero_grad()
    functional.cross_entropy(head(hidden).view(-1, WORDS), wanted.view(-1)).backward()
    optimizer.step()
    tick()
