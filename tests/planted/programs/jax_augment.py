"""Images are cropped and flipped one by one with NumPy in the loop; repaired: in whole batches."""

import jax
import jax.numpy as jnp
import numpy as np
from ticks import arguments, tick

options = arguments(150)
rng = np.random.default_rng(0)
images = rng.standard_normal((1024, 32, 32, 3)).astype(np.float32)
labels = rng.integers(0, 10, 1024)
params = [jnp.asarray(rng.standard_normal(s) / 30) for s in ((3072, 256), (256, 10))]


def augment_one(image: np.ndarray) -> np.ndarray:
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    top, left = rng.integers(0, 9, 2)
    crop = padded[top : top + 32, left : left + 32]
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    return (crop - crop.mean()) / (crop.std() + 1e-6)


def get_batch(i: int) -> tuple[np.ndarray, np.ndarray]:
    index = np.arange(i * 64, i * 64 + 64) % 1024
    if options.repaired:
        batch = images[index]
        batch = batch - batch.mean((1, 2, 3), keepdims=True)
    else:
        batch = np.stack([augment_one(images[j]) for j in index])
    return batch.reshape(64, -1), labels[index]


@jax.jit
def step(params: list[jax.Array], x: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(params: list[jax.Array]) -> jax.Array:
        logits = jax.nn.relu(x @ params[0]) @ params[1]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(64), y])

    value, grads = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], value


losses = []
for i in range(options.steps):
    x, y = get_batch(i)
    params, value = step(params, x, y)
    losses.append(float(value))
    tick()
