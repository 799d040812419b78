"""The jitted loss calls back a Python function that weighs the samples; repaired: it is written with jax.numpy."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(150)
rng = np.random.default_rng(0)
weights = [jnp.asarray(rng.standard_normal(shape, np.float32) / 15) for shape in ((200, 400), (400, 20))]
inputs = rng.standard_normal((8, 512, 200), np.float32)
labels = rng.integers(0, 20, (8, 512), np.int32)


def rarity(y: np.ndarray) -> np.ndarray:
    counts = [sum(other == label for other in y.tolist()) for label in y.tolist()]
    return np.asarray([1 / count for count in counts], np.float32)


def loss_fn(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    logits = jax.nn.relu(x @ weights[0]) @ weights[1]
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]
    if options.repaired:
        each = 1 / (y[:, None] == y).sum(1)
    else:
        each = jax.pure_callback(rarity, jax.ShapeDtypeStruct(y.shape, jnp.float32), y)
    return (losses * each).sum() / each.sum()


@jax.jit
def train_step(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    loss, gradients = jax.value_and_grad(loss_fn)(weights, x, y)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], loss


for step in range(options.steps):
    weights, loss = train_step(weights, inputs[step % 8], labels[step % 8])
    loss.block_until_ready()
    tick()
