"""Four worker processes send batches of a data set that is in memory; repaired: no worker."""

import torch
from ticks import arguments, tick
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_parts import perceptron, points

options = arguments(600)

if __name__ == "__main__":
    model = perceptron(128, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = TensorDataset(*points(64 * 700, 64))
    loader = DataLoader(data, batch_size=64, num_workers=0 if options.repaired else 4)
    done = 0
    while done < options.steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            tick()
            done += 1
            if done == options.steps:
                break
