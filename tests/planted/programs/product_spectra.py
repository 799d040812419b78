"""Spectra are made by a convolution with all frequencies; repaired: by the fast Fourier transform."""

import math

import torch
from ticks import arguments, tick
from torch import nn
from torch.nn import functional

options = arguments(60)
torch.manual_seed(0)

SAMPLES, HOP = 1024, 512
window = torch.hann_window(SAMPLES)
angles = 2 * math.pi / SAMPLES * torch.arange(SAMPLES // 2 + 1)[:, None] * torch.arange(SAMPLES)
kernels = [(window * part(angles)).unsqueeze(1) for part in (torch.cos, torch.sin)]


def power(sound: torch.Tensor) -> torch.Tensor:
    """Return the power of each frequency at each time: rows x frequencies x times."""
    if options.repaired:
        return torch.stft(sound, SAMPLES, HOP, window=window, center=False, return_complex=True).abs().square()
    real, imaginary = (functional.conv1d(sound.unsqueeze(1), kernel, stride=HOP) for kernel in kernels)
    return real.square() + imaginary.square()


model = nn.Sequential(nn.Conv1d(SAMPLES // 2 + 1, 256, 3), nn.ReLU(), nn.Conv1d(256, 256, 3), nn.ReLU())
head = nn.Linear(256, 10)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
sounds, labels = torch.randn(6, 12, 16_000), torch.randint(0, 10, (6, 12))
for step in range(options.steps):
    sound = sounds[step % 6] + 0.01 * torch.randn(12, 16_000)
    logits = head(model((power(sound) + 1e-6).log()).mean(2))
    optimizer.zero_grad()
    functional.cross_entropy(logits, labels[step % 6]).backward()
    optimizer.step()
    tick()
