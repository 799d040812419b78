"""Lamb as the program's own optimizer class, tensor by tensor; repaired: ``torch.optim.AdamW(fused=True)``."""

from collections.abc import Iterator

import torch
from ticks import arguments, tick
from torch import nn
from torch_parts import TextClassifier

options = arguments(150)


class Lamb(torch.optim.Optimizer):
    def __init__(self, parameters: Iterator[nn.Parameter], rate: float = 1e-3) -> None:
        super().__init__(parameters, {"rate": rate})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                update = state["mean"] / (state["square"].sqrt() + 1e-6) + 0.01 * parameter
                trust = parameter.norm() / update.norm().clamp(min=1e-6)
                parameter.add_(update * trust, alpha=-group["rate"])


torch.manual_seed(0)
model = TextClassifier(words=200, width=32, layers=6)
optimizer = torch.optim.AdamW(model.parameters(), fused=True) if options.repaired else Lamb(model.parameters())
tokens, labels = torch.randint(0, 200, (8, 16)), torch.randint(0, 4, (8,))
for _ in range(options.steps):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), labels).backward()
    optimizer.step()
    tick()
