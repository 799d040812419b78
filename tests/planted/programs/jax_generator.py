"""A generator cuts windows of a series by Python, number by number; repaired: by NumPy."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(250)
rng = np.random.default_rng(0)
series = rng.standard_normal(20_000).astype(np.float32)
numbers, views = series.tolist(), np.lib.stride_tricks.sliding_window_view(series, 48)
weights = [jnp.asarray(rng.standard_normal(shape) / 7) for shape in ((48, 96), (96, 96), (96, 1))]


def windows() -> Iterator[np.ndarray]:
    while True:
        begins = rng.integers(0, 19_900, 128)
        if options.repaired:
            yield views[begins]
        else:
            yield np.array([[number * 0.5 for number in numbers[begin : begin + 48]] for begin in begins], np.float32)


@jax.jit
def train(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        return jnp.square(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) @ weights[2]).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value


for _, batch in zip(range(options.steps), windows(), strict=False):
    weights, value = train(weights, batch)
    value.block_until_ready()
    tick()
