"""A large table is updated in some rows, and its old array is kept: XLA copies it; repaired: the old one is donated."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(120)
rng = np.random.default_rng(0)
rows, weights = jnp.asarray(rng.standard_normal((400_000, 32), np.float32) / 100), jnp.ones((32, 1))
indices = rng.integers(0, len(rows), (16, 256, 20))
targets = rng.standard_normal((16, 256, 1)).astype(np.float32)
State = tuple[jax.Array, jax.Array]


@partial(jax.jit, donate_argnums=0 if options.repaired else ())
def train_step(state: State, used: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    table, weights = state

    def loss_fn(rows: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.square(rows.sum(1) @ weights - y).mean()

    loss, (of_rows, of_weights) = jax.value_and_grad(loss_fn, (0, 1))(table[used], weights)
    return (table.at[used].add(-0.1 * of_rows), weights - 0.1 * of_weights), loss


state = rows, weights
del rows
for step in range(options.steps):
    state, loss = train_step(state, indices[step % 16], targets[step % 16])
    loss.block_until_ready()
    tick()
