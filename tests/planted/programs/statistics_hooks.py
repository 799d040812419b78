"""Forward hooks compute statistics of every layer in each step; repaired: they are removed."""

import torch
from ticks import arguments, tick
from torch import Tensor, nn
from torch_parts import convolutions, images

options = arguments(150)
model = convolutions(32)
statistics: dict[str, list[float]] = {}


def watch(name: str) -> object:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        values = output.detach().flatten()
        statistics[name] = [values.mean().item(), values.std().item(), *values.histc(32).tolist()]

    return hook


handles = [layer.register_forward_hook(watch(name)) for name, layer in model.named_children()]
if options.repaired:
    for handle in handles:
        handle.remove()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs, labels = images(16 * 16)
for step in range(options.steps):
    start = step % 16 * 16
    x, y = inputs[start : start + 16], labels[start : start + 16]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    tick()
