"""The training process itself waits for a slow store, sample by sample; repaired: three workers wait for it."""

import time

import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_parts import convolutions, images

options = arguments(200)


class Remote(Dataset):
    """Images behind a network that answers in a millisecond."""

    def __init__(self) -> None:
        self.images, self.labels = images(6400)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.001)
        return self.images[index], self.labels[index]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = convolutions(48)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loader = DataLoader(Remote(), batch_size=32, shuffle=True, num_workers=3 if options.repaired else 0)
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
