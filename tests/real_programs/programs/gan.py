"""A DCGAN: each step trains the discriminator on real and fake images, then the generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, BATCH, LATENT, WIDTH = 2, 60, 32, 64, 24


def generator() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, WIDTH * 4, 4, 1, 0, bias=False),
        nn.BatchNorm2d(WIDTH * 4),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(WIDTH * 4, WIDTH * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH * 2),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(WIDTH * 2, WIDTH, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH, WIDTH * 2, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH * 2),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH * 2, WIDTH * 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(WIDTH * 4),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(WIDTH * 4, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )


def weights_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)


def main() -> None:
    torch.manual_seed(0)
    images = torch.rand(BATCHES * BATCH, 3, 32, 32) * 2 - 1
    loader = DataLoader(TensorDataset(images), BATCH, shuffle=True)
    net_g, net_d = generator().apply(weights_init), discriminator().apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    trained = 0
    for epoch in range(EPOCHS):
        for index, (real,) in enumerate(loader):
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            net_d.zero_grad()
            loss_real = criterion(net_d(real), ones)
            loss_real.backward()
            fake: Tensor = net_g(torch.randn(len(real), LATENT, 1, 1))
            loss_fake = criterion(net_d(fake.detach()), zeros)
            loss_fake.backward()
            optimizer_d.step()

            net_g.zero_grad()
            loss_g = criterion(net_d(fake), ones)
            loss_g.backward()
            optimizer_g.step()
            trained += 1
            if index % 20 == 0:
                loss_d = loss_real.item() + loss_fake.item()
                print(f"[{epoch}/{EPOCHS}][{index}/{len(loader)}] loss_d {loss_d:.4f} loss_g {loss_g.item():.4f}")
    print(f"trained {trained} steps")


if __name__ == "__main__":
    main()
