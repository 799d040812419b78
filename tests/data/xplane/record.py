"""Records ``steps.xplane.pb``: two steps of a layer with its gradient, under ``jax.profiler``.

    python tests/data/xplane/record.py

The file that stands beside was recorded with JAX 0.10.2 on a CPU.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

TARGET = Path(__file__).with_name("steps.xplane.pb")


def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
    with jax.named_scope("layer"):
        return jnp.tanh(x @ weight).sum()


@jax.jit
def step(weight: jax.Array, x: jax.Array) -> jax.Array:
    return weight - 0.1 * jax.grad(loss)(weight, x)


def main() -> None:
    # Arrays of JAX would be made by programs of their own.
    weight, x = jax.device_put(np.ones((8, 8), np.float32)), jax.device_put(np.ones((4, 8), np.float32))
    step(weight, x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as directory:
        jax.profiler.start_trace(directory, profiler_options=options)
        for number in range(2):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                with jax.profiler.TraceAnnotation("load", batch=number, kind="toy"):
                    batch = x
                weight = step(weight, batch).block_until_ready()
        jax.profiler.stop_trace()
        shutil.copy(next(Path(directory).glob("plugins/profile/*/*.xplane.pb")), TARGET)


if __name__ == "__main__":
    main()
