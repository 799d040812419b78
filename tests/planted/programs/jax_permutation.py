"""The rows of a step are the first of a permutation of all rows; repaired: drawn at random."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(100)
rng = np.random.default_rng(0)
rows, batch = 60_000, 512
inputs = jnp.asarray(rng.standard_normal((rows, 64)), jnp.float32)
targets = jnp.asarray(rng.standard_normal((rows, 8)), jnp.float32)
weights = [jnp.asarray(rng.standard_normal(size) / 16, jnp.float32) for size in ((64, 1024), (1024, 8))]


@jax.jit
def train(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        return jnp.square(jnp.tanh(x @ weights[0]) @ weights[1] - y).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [w - 1e-2 * g for w, g in zip(weights, gradients, strict=True)]


key = jax.random.key(0)
for _ in range(options.steps):
    key, drawn = jax.random.split(key)
    if options.repaired:
        chosen = jax.random.randint(drawn, (batch,), 0, rows)
    else:
        chosen = jax.random.permutation(drawn, rows)[:batch]
    value, weights = train(weights, inputs[chosen], targets[chosen])
    value.block_until_ready()
    tick()
