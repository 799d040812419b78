"""The gradient of a whole network is computed, of which the head is trained; repaired: of the head."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(100)
rng = np.random.default_rng(0)
backbone = [jnp.asarray(rng.standard_normal((384, 384)) / 20) for _ in range(5)]
head = jnp.asarray(rng.standard_normal((384, 10)) / 20)
inputs = rng.standard_normal((8, 256, 384)).astype(np.float32)
labels = rng.integers(0, 10, (8, 256))


def loss(head: jax.Array, backbone: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    for matrix in backbone:
        x = jnp.tanh(x @ matrix)
    return -jnp.take_along_axis(jax.nn.log_softmax(x @ head), y[:, None], axis=1).mean()


gradients_of = jax.jit(jax.value_and_grad(loss, argnums=0 if options.repaired else (0, 1)))
update = jax.jit(lambda head, gradient: head - 0.01 * gradient)
for step in range(options.steps):
    value, gradients = gradients_of(head, backbone, inputs[step % 8], labels[step % 8])
    head = update(head, gradients if options.repaired else gradients[0])
    head.block_until_ready()
    tick()
