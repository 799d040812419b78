"""Each gradient has its norm computed outside of jit and read; repaired: inside, and read each fiftieth step."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(400)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal((64, 64)) / 8) for _ in range(24)]
inputs = rng.standard_normal((16, 64, 64)).astype(np.float32)
Arrays = list[jax.Array]


@jax.jit
def train(weights: Arrays, x: jax.Array) -> tuple[jax.Array, Arrays, Arrays, jax.Array]:
    def loss(weights: Arrays) -> jax.Array:
        h = x
        for matrix in weights:
            h = jnp.tanh(h @ matrix) + h
        return jnp.square(h).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    norms = jnp.stack([jnp.linalg.norm(g) for g in gradients])
    return value, [w - 1e-4 * g for w, g in zip(weights, gradients, strict=True)], gradients, norms


history = []
for step in range(options.steps):
    value, weights, gradients, norms = train(weights, inputs[step % 16])
    if not options.repaired:
        history.append([float(jnp.linalg.norm(g)) for g in gradients])
    elif step % 50 == 0:
        history.append(jax.device_get(norms).tolist())
    value.block_until_ready()
    tick()
