"""The whole validation set is evaluated after each step; repaired: after each fiftieth."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(300)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal(shape) / 16) for shape in ((128, 256), (256, 256), (256, 10))]
inputs, labels = rng.standard_normal((32, 64, 128)).astype(np.float32), rng.integers(0, 10, (32, 64))
held_out = rng.standard_normal((8, 128, 128)).astype(np.float32), rng.integers(0, 10, (8, 128))
Weights = list[jax.Array]


def model(weights: Weights, x: jax.Array) -> jax.Array:
    return jax.nn.relu(jax.nn.relu(x @ weights[0]) @ weights[1]) @ weights[2]


@jax.jit
def train_step(weights: Weights, x: jax.Array, y: jax.Array) -> tuple[Weights, jax.Array]:
    def loss(weights: Weights) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(model(weights, x)), y[:, None], 1).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)], value


@jax.jit
def eval_step(weights: Weights, x: jax.Array, y: jax.Array) -> jax.Array:
    return (model(weights, x).argmax(-1) == y).mean()


def validate(weights: Weights) -> float:
    return float(np.mean([eval_step(weights, x, y) for x, y in zip(*held_out, strict=True)]))


for step in range(options.steps):
    weights, value = train_step(weights, inputs[step % 32], labels[step % 32])
    if not options.repaired or step % 50 == 49:
        validate(weights)
    value.block_until_ready()
    tick()
