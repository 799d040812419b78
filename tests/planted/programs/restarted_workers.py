"""Workers are started again for every short epoch; repaired: they persist."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_parts import convolutions, images

options = arguments(150)

if __name__ == "__main__":
    model = convolutions(16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(*images(32 * 6))
    loader = DataLoader(data, batch_size=32, num_workers=2, persistent_workers=options.repaired)
    done = 0
    while done < options.steps:
        for image, label in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(image), label).backward()
            optimizer.step()
            tick()
            done += 1
            if done == options.steps:
                break
