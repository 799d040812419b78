"""A policy writes its sequences by going over all of them for each token; repaired: keys and values are kept."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn import functional

options = arguments(40)
torch.manual_seed(0)

WORDS, WIDTH, HEADS, PROMPT, NEW = 256, 96, 4, 40, 10
Kept = tuple[torch.Tensor, torch.Tensor]


class Layer(nn.Module):
    """A layer of a decoder, which may be given keys and values of the tokens before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))

    def forward(self, x: torch.Tensor, kept: Kept | None) -> tuple[torch.Tensor, Kept]:
        """Return the states, and keys and values of all tokens."""
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        if kept is not None:
            k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=kept is None)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x), (k, v)


embedding, layers, head = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(3)), nn.Linear(WIDTH, WORDS)


def logits_of(tokens: torch.Tensor, kept: list[Kept] | None = None) -> tuple[torch.Tensor, list[Kept]]:
    """Return what the model says of the next tokens, and what it keeps of these."""
    x, now = embedding(tokens), []
    for number, layer in enumerate(layers):
        x, of_layer = layer(x, None if kept is None else kept[number])
        now.append(of_layer)
    return head(x), now


optimizer = torch.optim.AdamW([*embedding.parameters(), *layers.parameters(), *head.parameters()], lr=1e-4)
for _ in range(options.steps):
    tokens, kept = torch.randint(0, WORDS, (8, PROMPT)), None
    with torch.no_grad():
        for number in range(NEW):
            given = tokens[:, -1:] if options.repaired and number else tokens
            logits, now = logits_of(given, kept)
            kept = now if options.repaired else None
            tokens = torch.cat([tokens, torch.multinomial(logits[:, -1].softmax(1), 1)], 1)
    reward = (tokens[:, PROMPT:] % 7 == 0).float().mean(1)
    loss = functional.cross_entropy(
        logits_of(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    optimizer.zero_grad()
    (loss.view(8, -1).mean(1) * (reward - reward.mean())).mean().backward()
    optimizer.step()
    tick()
