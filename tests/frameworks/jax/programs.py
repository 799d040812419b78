"""Programs that train with JAX, and what a recording of one holds, read by JAX's own reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax.profiler import ProfileData

#: A network with scopes, and a jitted step; steps come from the first argument.
TRAINING = """
import json, os, signal, sys, time
import jax
import jax.numpy as jnp

stamps = []


@jax.jit
def update(weights, x):
    def loss(weights):
        values = x
        for number, matrix in enumerate(weights):
            with jax.named_scope(f"layer{number}"):
                values = jnp.tanh(values @ matrix)
        return (values**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [matrix - 0.1 * gradient for matrix, gradient in zip(weights, gradients)]


@jax.jit
def evaluate(weights, x):
    return (x @ weights[0]).sum()


weights = [jnp.full((32, 64), 0.1), jnp.full((64, 8), 0.1)]
x = jnp.ones((16, 32))
"""

LOOP = (
    TRAINING
    + """
# the loop begins
for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    value, weights = update(weights, x)
    if number % 4 == 3:
        evaluate(weights, x)
    value.block_until_ready()
    stamps.append(time.perf_counter_ns())
print("trained", number + 1, f"{float(value):.6f}")
"""
)

#: The same with what the program says of its steps.
ANNOTATED = LOOP.replace(
    "    value, weights = update(weights, x)\n",
    "    with jax.profiler.StepTraceAnnotation('train', step_num=number):\n"
    "        value, weights = update(weights, update(weights, x)[0] * x)\n",
)


class Event(NamedTuple):
    """An event of XLA; times in ns, relative to the file's own start."""

    name: str
    line: str
    plane: str
    start: float
    dur: float
    stats: dict[str, Any]


def capture(run: Path, rank: int = 0) -> Path:
    """Return XLA's file of a rank."""
    (path,) = (run / f"rank{rank}" / "capture" / "jax").glob("*.xplane.pb")
    return path


def events(path: Path) -> Iterator[Event]:
    """Yield the events of a file."""
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                yield Event(event.name, line.name, plane.name, event.start_ns, event.duration_ns, dict(event.stats))


def counts(run: Path, rank: int = 0) -> Counter[str]:
    """Count the operations of compiled programs by the program's name."""
    return Counter(str(event.stats["hlo_module"]) for event in events(capture(run, rank)) if "hlo_op" in event.stats)


def runs_of(run: Path, program: str) -> int:
    """Return how often a compiled program ran in the recording."""
    found = {event.stats["run_id"] for event in events(capture(run)) if event.stats.get("hlo_module") == program}
    return len(found)


def python_calls(run: Path) -> list[str]:
    """Return the names of the Python calls in the recording."""
    return [event.name for event in events(capture(run)) if event.name.startswith("$")]
