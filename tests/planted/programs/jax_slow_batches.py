"""Batches are made by Python, value by value, before each step; repaired: by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(150)
rng = np.random.default_rng(0)
pixels = rng.integers(0, 256, (512, 784), dtype=np.uint8)
weights = [jnp.asarray(rng.standard_normal(shape) / 28) for shape in ((784, 512), (512, 10))]


def batch(number: int) -> np.ndarray:
    rows = pixels[number % 8 * 64 :][:64]
    if options.repaired:
        return rows.astype(np.float32) / 255 - 0.5
    return np.array([[value / 255 - 0.5 for value in row.tolist()] for row in rows], dtype=np.float32)


@jax.jit
def train(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        return jnp.square(jax.nn.relu(x @ weights[0]) @ weights[1]).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


for step in range(options.steps):
    value, weights = train(weights, batch(step))
    value.block_until_ready()
    tick()
