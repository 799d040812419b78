"""A new function is jitted in each step, so that XLA compiles it again; repaired: once."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(24)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal(shape) / 16) for shape in ((256, 256), (256, 10))]
inputs, labels = rng.standard_normal((16, 64, 256)).astype(np.float32), rng.integers(0, 10, (16, 64))


def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jax.nn.relu(x @ weights[0]) @ weights[1]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def update(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


train = jax.jit(update)
for step in range(options.steps):
    if not options.repaired:
        train = jax.jit(lambda w, x, y: update(w, x, y))
    value, weights = train(weights, inputs[step % 16], labels[step % 16])
    value.block_until_ready()
    tick()
