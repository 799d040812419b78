"""A convolutional classifier in Flax with Optax: one jitted step on batches that NumPy shuffles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training import train_state

EPOCHS, BATCHES, BATCH = 3, 40, 64


class CNN(nn.Module):
    """The network."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features in (32, 64):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(10)(x)


@jax.jit
def train_step(
    state: train_state.TrainState, images: jax.Array, labels: jax.Array
) -> tuple[train_state.TrainState, jax.Array]:
    def loss_of(parameters: dict) -> jax.Array:
        logits = state.apply_fn({"params": parameters}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main() -> None:
    source = np.random.default_rng(0)
    images = source.random((BATCHES * BATCH, 28, 28, 1), dtype=np.float32)
    labels = source.integers(0, 10, BATCHES * BATCH)
    model = CNN()
    parameters = model.init(jax.random.key(0), jnp.ones((1, 28, 28, 1)))["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=parameters, tx=optax.adam(1e-3))
    trained = 0
    for epoch in range(EPOCHS):
        losses = []
        for rows in source.permutation(len(images)).reshape(-1, BATCH):
            state, loss = train_step(state, images[rows], labels[rows])
            losses.append(loss)
            trained += 1
        print(f"epoch {epoch}: loss {np.mean(jax.device_get(losses)):.4f}")
    print(f"trained {trained} steps")


if __name__ == "__main__":
    main()
