"""The whole data set is given to the device in each step; repaired: once."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(100)
rng = np.random.default_rng(0)
data = rng.standard_normal((20000, 256))
params = [jnp.asarray(rng.standard_normal((256, 256)) / 16) for _ in range(3)]


@jax.jit
def step(params: list[jax.Array], data: jax.Array, index: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    x = data[index]

    def loss(params: list[jax.Array]) -> jax.Array:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return jnp.square(y - x).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


kept = jnp.array(data)
for _ in range(options.steps):
    index = rng.integers(0, 20000, 128)
    params, value = step(params, kept if options.repaired else jnp.array(data), index)
    value.block_until_ready()
    tick()
