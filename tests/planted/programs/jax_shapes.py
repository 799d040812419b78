"""Batches have ever other lengths, and XLA compiles for each; repaired: padded to one length."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(80)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal(shape) / 16) for shape in ((128, 256), (256, 1))]
lengths = rng.permutation(np.arange(40, 40 + max(options.steps, 300)))


@jax.jit
def train(weights: list[jax.Array], x: jax.Array, mask: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        scores = jnp.tanh(x @ weights[0]) @ weights[1]
        return (jnp.square(scores[:, 0] - 1) * mask).sum() / mask.sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


for step in range(options.steps):
    length = int(lengths[step])
    padded = 512 if options.repaired else length
    x = np.zeros((padded, 128), np.float32)
    x[:length] = rng.standard_normal((length, 128))
    value, weights = train(weights, x, (np.arange(padded) < length).astype(np.float32))
    value.block_until_ready()
    tick()
