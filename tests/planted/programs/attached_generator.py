"""A discriminator's loss flows back into the generator, whose gradients are cleared; repaired: ``detach()``."""

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import perceptron

options = arguments(100)
torch.manual_seed(0)
generator, discriminator = perceptron(768, 64, 784), perceptron(128, 784, 1)
of_generator = torch.optim.Adam(generator.parameters(), 2e-4, fused=True)
of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-4, fused=True)
loss, real = nn.BCEWithLogitsLoss(), torch.rand(64, 784)
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(options.steps):
    for _ in range(3):
        made = generator(torch.randn(64, 64))
        if options.repaired:
            made = made.detach()
        of_discriminator.zero_grad()
        (loss(discriminator(real), ones) + loss(discriminator(made), zeros)).backward()
        of_discriminator.step()
    of_generator.zero_grad()
    loss(discriminator(generator(torch.randn(64, 64))), ones).backward()
    of_generator.step()
    tick()
