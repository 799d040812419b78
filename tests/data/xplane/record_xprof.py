"""Records ``xprof``: what ``jax.profiler`` leaves of three steps, as XPlane and twice as JSON.

    python tests/data/xplane/record_xprof.py

The files that stand there were recorded with JAX 0.10.2 on a CPU.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

TARGET = Path(__file__).with_name("xprof")


@jax.jit
def step(weight: jax.Array) -> jax.Array:
    return jnp.tanh(weight @ weight) * 0.5


def main() -> None:
    weight = step(jnp.ones((64, 64))).block_until_ready()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory, create_perfetto_trace=True):
            for number in range(3):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    weight = step(weight).block_until_ready()
        (recorded,) = Path(directory).glob("plugins/profile/*")
        for path in recorded.iterdir():
            ending = path.name.partition(".")[2]
            shutil.copy(path, TARGET / (path.name if path.name.startswith("perfetto") else f"host.{ending}"))


if __name__ == "__main__":
    main()
