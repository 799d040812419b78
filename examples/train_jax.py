"""A small network on generated points, trained with JAX as anyone would; nothing in it knows stepscope.

python examples/train_jax.py [--steps 40] [--width 256]
"""

from __future__ import annotations

import argparse
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

CLASSES, FEATURES = 10, 64
Parameters: TypeAlias = dict[str, jax.Array]


def initial(width: int) -> Parameters:
    """Return the weights of three layers."""
    sizes = [FEATURES, width, width, CLASSES]
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return {
        f"layer{number}": jax.random.normal(key, (rows, columns)) * (2 / rows) ** 0.5
        for number, (key, rows, columns) in enumerate(pairs)
    }


def loss(parameters: Parameters, points: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy; the scopes are what the operators are found under."""
    values = points
    for name, weights in parameters.items():
        with jax.named_scope(name):
            values = values @ weights
            values = jax.nn.relu(values) if name != "layer2" else values
    with jax.named_scope("cross_entropy"):
        chosen = jax.nn.log_softmax(values)[jnp.arange(labels.shape[0]), labels]
        return -chosen.mean()


@jax.jit
def update(parameters: Parameters, points: jax.Array, labels: jax.Array) -> tuple[jax.Array, Parameters]:
    """Return the loss and the weights after one step."""
    value, gradients = jax.value_and_grad(loss)(parameters, points, labels)
    return value, jax.tree.map(lambda weight, gradient: weight - 0.05 * gradient, parameters, gradients)


def batch(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy points around one centre a class, and their classes."""
    labels = random.integers(CLASSES, size=size)
    centres = np.eye(CLASSES, FEATURES, dtype=np.float32) * 3
    return centres[labels] + random.standard_normal((size, FEATURES), np.float32), labels


def main() -> None:
    """Train and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    parameters = initial(arguments.width)
    for step in range(arguments.steps):
        points, labels = batch(random, arguments.batch)
        value, parameters = update(parameters, points, labels)
        if step % 10 == 0:
            print(f"step {step:3d}  loss {float(value):.3f}")


if __name__ == "__main__":
    main()
