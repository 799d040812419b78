"""A tagger takes its sentences one after the other; repaired: padded, all at once."""

import torch
from ticks import arguments, tick
from torch import nn

options = arguments(120)
torch.manual_seed(0)
embed, layer, last = nn.Embedding(2000, 48), nn.GRU(48, 64, batch_first=True), nn.Linear(64, 9)
optimizer = torch.optim.Adam([p for part in (embed, layer, last) for p in part.parameters()])
lengths = torch.randint(8, 16, (8, 12)).tolist()
texts = [[torch.randint(1, 2000, (length,)) for length in batch] for batch in lengths]
tags = [torch.cat([text % 9 for text in batch]) for batch in texts]
for step in range(options.steps):
    batch = texts[step % 8]
    if options.repaired:
        padded = nn.utils.rnn.pad_sequence(batch, batch_first=True)
        made = layer(embed(padded))[0][padded > 0]
    else:
        made = torch.cat([layer(embed(text)[None])[0][0] for text in batch])
    optimizer.zero_grad()
    nn.functional.cross_entropy(last(made), tags[step % 8]).backward()
    optimizer.step()
    tick()
