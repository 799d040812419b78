"""A denoising diffusion model: a small U-Net that predicts noise, and an average of its weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, BATCH, TIMES, WIDTH = 2, 50, 16, 1000, 32


class Block(nn.Module):
    """Two convolutions, between which the time is added."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(4 * WIDTH, outputs)
        self.norm_2, self.conv_2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv_1(functional.silu(self.norm_1(x)))
        h = h + self.time(functional.silu(time))[:, :, None, None]
        return self.conv_2(functional.silu(self.norm_2(h))) + self.skip(x)


class UNet(nn.Module):
    """The network."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH))
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.down_1, self.down_2 = Block(WIDTH, WIDTH), Block(WIDTH, 2 * WIDTH)
        self.middle = Block(2 * WIDTH, 2 * WIDTH)
        self.up_2, self.up_1 = Block(4 * WIDTH, WIDTH), Block(2 * WIDTH, WIDTH)
        self.head = nn.Sequential(nn.GroupNorm(8, WIDTH), nn.SiLU(), nn.Conv2d(WIDTH, 3, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(WIDTH // 2) * (-math.log(10_000) / (WIDTH // 2)))
        angles = times[:, None] * frequencies
        time = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        first = self.down_1(self.stem(x), time)
        second = self.down_2(functional.avg_pool2d(first, 2), time)
        middle = self.middle(functional.avg_pool2d(second, 2), time)
        up = self.up_2(torch.cat([functional.interpolate(middle, scale_factor=2), second], dim=1), time)
        return self.head(self.up_1(torch.cat([functional.interpolate(up, scale_factor=2), first], dim=1), time))


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.rand(BATCHES * BATCH, 3, 32, 32) * 2 - 1), BATCH, shuffle=True)
    model = UNet()
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES), dim=0)
    step = 0
    for epoch in range(EPOCHS):
        for (images,) in loader:
            times = torch.randint(0, TIMES, (len(images),))
            noise = torch.randn_like(images)
            alpha = kept[times][:, None, None, None]
            noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
            loss = functional.mse_loss(model(noisy, times), noise)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.005)
            step += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"trained {step} steps")


if __name__ == "__main__":
    main()
