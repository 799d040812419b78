"""The data set augments each image in Python, value by value; repaired: with array operations."""

import numpy as np
import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_parts import convolutions

options = arguments(150)


class Photos(Dataset):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (1024, 3, 32, 32), dtype=np.uint8)
        self.labels = rng.integers(0, 10, 1024)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.pixels[index]
        if options.repaired:
            values = np.clip(image / 127.5 - 1.0, -0.9, 0.9).astype(np.float32)
        else:
            flat = [min(max(value / 127.5 - 1.0, -0.9), 0.9) for value in image.reshape(-1).tolist()]
            values = np.array(flat, dtype=np.float32).reshape(image.shape)
        return torch.from_numpy(values), int(self.labels[index])


model, loss_fn = convolutions(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(Photos(), batch_size=32, shuffle=True)
done = 0
while done < options.steps:
    for image, label in loader:
        optimizer.zero_grad()
        loss_fn(model(image), label).backward()
        optimizer.step()
        tick()
        done += 1
        if done == options.steps:
            break
