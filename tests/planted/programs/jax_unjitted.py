"""Loss, gradient and update run operator by operator; repaired: in one jitted function."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(80)
rng = np.random.default_rng(0)
params = {f"layer{i}": {"w": jnp.asarray(rng.standard_normal((64, 64)) / 8), "b": jnp.zeros(64)} for i in range(6)}
inputs, targets = rng.standard_normal((2, 16, 64, 64)).astype(np.float32)
Params = dict[str, dict[str, jax.Array]]


def forward(params: Params, x: jax.Array) -> jax.Array:
    for layer in params.values():
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return x


def loss_fn(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((forward(params, x) - y) ** 2)


def train_step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


if options.repaired:
    train_step = jax.jit(train_step)
for i in range(options.steps):
    params, loss = train_step(params, inputs[i % 16], targets[i % 16])
    loss.block_until_ready()
    tick()
