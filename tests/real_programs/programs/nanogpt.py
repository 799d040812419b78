"""A character-level GPT in one file: accumulated gradients, a cosine schedule, losses estimated every fifty steps."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS, ACCUMULATED, BATCH, CONTEXT = 120, 2, 8, 64
EVALUATED_EVERY, EVALUATED_BATCHES, LOGGED_EVERY = 60, 4, 10
LAYERS, HEADS, WIDTH, VOCABULARY = 4, 4, 128, 65
RATE, LEAST_RATE, WARM_UP = 1e-3, 1e-4, 10


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def get_batch(text: np.ndarray) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,)).tolist()
    x = torch.stack([torch.from_numpy(text[at : at + CONTEXT].astype(np.int64)) for at in starts])
    y = torch.stack([torch.from_numpy(text[at + 1 : at + 1 + CONTEXT].astype(np.int64)) for at in starts])
    return x, y


@torch.no_grad()
def estimate_loss(model: GPT, text: np.ndarray) -> float:
    model.eval()
    losses = [model(*get_batch(text))[1].item() for _ in range(EVALUATED_BATCHES)]
    model.train()
    return sum(losses) / len(losses)


def rate(step: int) -> float:
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return LEAST_RATE + 0.5 * (1 + math.cos(math.pi * step / STEPS)) * (RATE - LEAST_RATE)


def main() -> None:
    torch.manual_seed(1337)
    text = np.random.default_rng(0).zipf(1.5, 200_000).clip(0, VOCABULARY - 1).astype(np.uint16)
    model = GPT()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=RATE, betas=(0.9, 0.95)
    )
    x, y = get_batch(text)
    began = time.perf_counter()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        if step % EVALUATED_EVERY == 0:
            print(f"step {step}: val loss {estimate_loss(model, text):.4f}")
        for _ in range(ACCUMULATED):
            _, loss = model(x, y)
            x, y = get_batch(text)
            (loss / ACCUMULATED).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOGGED_EVERY == 0:
            print(f"iter {step}: loss {loss.item():.4f}, time {(time.perf_counter() - began) * 1000:.0f} ms")
    print(f"trained {STEPS} steps")


if __name__ == "__main__":
    main()
