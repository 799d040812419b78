"""The gradient is jitted, but the weights are updated array by array outside of it; repaired: inside."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(200)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal((64, 64)) / 8) for _ in range(40)]
momentum = [jnp.zeros_like(w) for w in weights]
inputs = rng.standard_normal((16, 32, 64)).astype(np.float32)
Arrays = list[jax.Array]


def loss(weights: Arrays, x: jax.Array) -> jax.Array:
    for matrix in weights:
        x = jnp.tanh(x @ matrix) + 0.5 * x
    return jnp.square(x).mean()


def update(weights: Arrays, momentum: Arrays, gradients: Arrays) -> tuple[Arrays, Arrays]:
    momentum = [0.9 * m + g for m, g in zip(momentum, gradients, strict=True)]
    return [w - 0.01 * m for w, m in zip(weights, momentum, strict=True)], momentum


@jax.jit
def train(weights: Arrays, momentum: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays, Arrays]:
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return value, *update(weights, momentum, gradients)


gradient = jax.jit(jax.value_and_grad(loss))
for step in range(options.steps):
    if options.repaired:
        value, weights, momentum = train(weights, momentum, inputs[step % 16])
    else:
        value, gradients = gradient(weights, inputs[step % 16])
        weights, momentum = update(weights, momentum, gradients)
    value.block_until_ready()
    tick()
