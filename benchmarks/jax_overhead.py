"""Time that recording adds to a JAX step on a CPU: stepscope against `jax.profiler.trace` (`added_time.py`).

    python benchmarks/jax_overhead.py [--modes small,middle,annotated] [--switches plain,counters,stacks] [--rounds 41]

A step is one run of a compiled network with its gradient, and waits for its result: of 32 × 32 (about 0.1 ms), and of
512 × 512 (about 7 ms). `annotated` is the small one in a `StepTraceAnnotation`. No program calls `step()`: stepscope
infers the steps. `plain` has the same levels of XLA's tracers on both sides, and no counters of the host; `counters`
has them, as by default; `stacks` records Python calls, as `jax.profiler.trace` does without options. Run it in an
environment with JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from added_time import Peer, Step, Switches, main

import stepscope

SWITCHES: dict[str, Switches] = {"plain": {"counters_hz": 0}, "counters": {}, "stacks": {"with_stack": True}}
LAYERS = 4


@jax.jit
def update(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Return the loss and the weights after one step."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        values = x
        for number, matrix in enumerate(weights):
            with jax.named_scope(f"layer{number}"):
                values = jnp.tanh(values @ matrix)
        return (values**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [matrix - 0.01 * gradient for matrix, gradient in zip(weights, gradients, strict=True)]


def network(size: int, rows: int) -> Step:
    """Return a step of a network whose layers are of ``size`` × ``size``."""
    weights = [jnp.full((size, size), 0.01) for _ in range(LAYERS)]
    x = jnp.ones((rows, size))

    def step() -> None:
        nonlocal weights
        value, weights = update(weights, x)
        value.block_until_ready()

    return step


def small() -> Step:
    """Return a step of about 0.1 ms."""
    return network(32, 32)


def middle() -> Step:
    """Return a step of about 7 ms."""
    return network(512, 256)


def annotated() -> Step:
    """Return the small step, annotated as one."""
    step = small()

    def annotate() -> None:
        with jax.profiler.StepTraceAnnotation("train", step_num=0):
            step()

    return annotate


@contextmanager
def theirs(switches: Switches, output: str) -> Iterator[Any]:
    """JAX's own profiler, which also writes `trace.json.gz` when it stops; it has no step()."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(bool(switches.get("with_stack")))
    with jax.profiler.trace(output, profiler_options=options):
        yield None


@contextmanager
def ours(switches: Switches, output: str) -> Iterator[None]:
    """Record with stepscope's default collectors, which infer the steps."""
    with stepscope.profile(activities=["cpu"], output=output, analyse="later", **switches):
        yield None


class Steps(Peer):
    """Both sides find the steps themselves."""

    def recorders(self, switches: Switches, output: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Return the recorders under which blocks are measured, by name."""
        return {**super().recorders(switches, output), "ours": lambda: ours(switches, output)}


if __name__ == "__main__":
    modes = {"small": small, "middle": middle, "annotated": annotated}
    main(Steps(f"JAX {jax.__version__}", modes, SWITCHES, theirs), __doc__)
