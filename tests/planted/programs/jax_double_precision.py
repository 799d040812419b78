"""Everything is computed in float64; repaired: in float32."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(80)
if not options.repaired:
    jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
params = [jnp.asarray(rng.standard_normal((512, 512)) / 30) for _ in range(4)]
inputs = rng.standard_normal((8, 128, 512))


@jax.jit
def step(params: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(params: list[jax.Array]) -> jax.Array:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return jnp.square(y).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


for i in range(options.steps):
    params, value = step(params, jnp.asarray(inputs[i % 8]))
    value.block_until_ready()
    tick()
