"""What ``facts.py`` measures in each framework: a step with a loader, and the calls that the facts lengthen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from stepscope.collect.frameworks import FRAMEWORKS

Call = Callable[[], object]


class Subject(NamedTuple):
    """One framework.

    Attributes:
        step: Makes a step of about 20 ms, with a loader in the process where the framework has one.
        calls: Makes the calls that the facts lengthen, by name; of those in `seldom`, a step has none.
        recorders: Collectors of operators by name; None for no recording.
        seldom: Names of calls.
    """

    step: Callable[[], Call]
    calls: Callable[[], dict[str, Call]]
    recorders: dict[str, Callable[[], Any] | None]
    seldom: tuple[str, ...] = ()


def collector(module: str, kind: str) -> Callable[[], Any]:
    """Return what makes a collector, without importing its framework."""
    return lambda: getattr(import_module(f"stepscope.collect.{module}"), kind)()


def state_of(framework: str) -> Callable[[], Any]:
    """Return what makes the collector of a framework's state."""
    found = next(one for one in FRAMEWORKS[framework].extras if one.name == f"{framework}_state")
    return lambda: getattr(import_module(found.module), found.kind)()


def endless(batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the batches of epochs without end."""
    for _ in repeat(None):
        yield from batches()


def torch_step() -> Call:
    """Return a step of PyTorch: a transformer under autocast."""
    import torch

    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.Adam(model.parameters())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16_384, 48, 96)), batch_size=16)
    batches = endless(lambda: iter(loader))

    def step() -> None:
        (inputs,) = next(batches)
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            model(inputs).square().mean().backward()
        optimizer.step()

    return step


def torch_calls() -> dict[str, Call]:
    """Return the calls of PyTorch that the facts lengthen."""
    import torch

    loader = torch.utils.data.DataLoader(range(1 << 30), batch_size=1, collate_fn=len)  # type: ignore[arg-type]
    batches = iter(loader)
    parameter = torch.ones(1, requires_grad=True)

    def autocast() -> None:
        with torch.autocast("cpu", enabled=False):
            pass

    return {
        "a batch": lambda: next(batches),
        "autocast": autocast,
        "a hook on a tensor": lambda: parameter.register_hook(print).remove(),
        "a module is made": torch.nn.Identity,
    }


def jax_step() -> Call:
    """Return a step of JAX: four compiled layers, with batches from the host."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list[Any], x: Any) -> Any:  # noqa: ANN401 - arrays of JAX
        for matrix in weights:
            x = jnp.tanh(x @ matrix)
        return jnp.square(x).mean()

    @jax.jit
    def update(weights: list[Any], x: Any) -> list[Any]:  # noqa: ANN401 - arrays of JAX
        gradients = jax.grad(loss)(weights, x)
        return [matrix - 0.01 * gradient for matrix, gradient in zip(weights, gradients, strict=True)]

    weights = [jnp.full((512, 512), 0.01) for _ in range(4)]
    inputs = np.random.default_rng(0).standard_normal((8, 512, 512)).astype(np.float32)
    batches = endless(lambda: iter(inputs))

    def step() -> None:
        nonlocal weights
        weights = update(weights, next(batches))
        weights[0].block_until_ready()

    return step


def jax_calls() -> dict[str, Call]:
    """Return the calls of JAX that the facts could lengthen: it has no loader, and no objects of a model."""
    import jax

    double = jax.jit(lambda x: x + x)
    return {"a jitted call": lambda: double(1.0), "a function is jitted": lambda: jax.jit(float)}


def mindspore_step() -> Call:
    """Return a step of MindSpore: a compiled network, with its batches from a dataset."""
    import mindspore as ms
    from mindspore import dataset, nn

    ms.set_device("CPU")
    network = nn.SequentialCell(*[layer for _ in range(4) for layer in (nn.Dense(512, 512), nn.ReLU())])
    loss, optimizer = nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01)

    def forward(x: Any) -> Any:  # noqa: ANN401 - tensors of MindSpore
        return loss(network(x), x)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit  # type: ignore[untyped-decorator]
    def train(x: Any) -> Any:  # noqa: ANN401 - tensors of MindSpore
        value, gradients = gradient(x)
        optimizer(gradients)
        return value

    data = dataset.NumpySlicesDataset(np.random.default_rng(0).random((4096, 512), np.float32), shuffle=False)
    data = data.batch(256)
    batches = endless(lambda: data.create_tuple_iterator(num_epochs=1))
    return lambda: train(*next(batches)).asnumpy()


def mindspore_calls() -> dict[str, Call]:
    """Return the calls of MindSpore that the facts lengthen."""
    from mindspore import dataset, nn

    data = dataset.NumpySlicesDataset(np.zeros((1 << 20, 1), np.float32), shuffle=False).batch(1)
    batches, cell = endless(lambda: data.create_tuple_iterator(num_epochs=1)), nn.ReLU()
    return {"a batch": lambda: next(batches), "set_train": cell.set_train, "a cell is made": nn.ReLU}


def paddle_step() -> Call:
    """Return a step of Paddle: a network in the dynamic graph, with its batches from a loader."""
    import paddle

    network = paddle.nn.Sequential(
        *[layer for _ in range(4) for layer in (paddle.nn.Linear(512, 512), paddle.nn.ReLU())]
    )
    optimizer = paddle.optimizer.SGD(0.01, parameters=network.parameters())
    data = paddle.io.TensorDataset([paddle.rand([4096, 512])])
    loader = paddle.io.DataLoader(data, batch_size=128)
    batches = endless(lambda: iter(loader))

    def step() -> None:
        (inputs,) = next(batches)
        network(inputs).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def paddle_calls() -> dict[str, Call]:
    """Return the calls of Paddle that the facts lengthen."""
    import paddle

    data = paddle.io.TensorDataset([paddle.zeros([1 << 16, 1])])
    loader = paddle.io.DataLoader(data, batch_size=1, use_buffer_reader=False)
    batches, layer = endless(lambda: iter(loader)), paddle.nn.ReLU()
    return {"a batch": lambda: next(batches), "train": layer.train, "a layer is made": paddle.nn.ReLU}


SUBJECTS = {
    "torch": Subject(
        torch_step,
        torch_calls,
        {
            "none": None,
            "native": collector("torch.native_collector", "TorchNativeCollector"),
            "kineto": collector("torch.kineto_collector", "TorchCollector"),
        },
        ("a module is made",),
    ),
    "jax": Subject(
        jax_step,
        jax_calls,
        {"none": None, "xplane": collector("jax.jax_collector", "JaxCollector")},
        ("a function is jitted",),
    ),
    "mindspore": Subject(
        mindspore_step,
        mindspore_calls,
        {"none": None, "mindspore": collector("mindspore.mindspore_collector", "MindSporeCollector")},
        ("a cell is made",),
    ),
    "paddle": Subject(
        paddle_step,
        paddle_calls,
        {"none": None, "paddle": collector("paddle.paddle_collector", "PaddleCollector")},
        ("a layer is made",),
    ),
}
