"""The hardest of many negatives are found by sorting them; repaired: by top_k."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(100)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal(size) / 16) for size in ((128, 512), (512, 128))]
queue = jnp.asarray(rng.standard_normal((2048, 128)) / 11)
inputs = rng.standard_normal((8, 256, 128)).astype(np.float32)


@jax.jit
def train(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        h = jnp.tanh(x @ weights[0]) @ weights[1]
        negatives = h @ queue.T
        hardest = jax.lax.top_k(negatives, 16)[0] if options.repaired else jnp.sort(negatives, axis=-1)[:, -16:]
        return jax.nn.logsumexp(hardest, axis=-1).mean() - (h * x).sum(-1).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 1e-4 * g for w, g in zip(weights, gradients, strict=True)]


for step in range(options.steps):
    value, weights = train(weights, inputs[step % 8])
    value.block_until_ready()
    tick()
