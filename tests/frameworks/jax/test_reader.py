"""What JAX records, against what its own reader says of the same file: ``jax.profiler.ProfileData``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from jax.profiler import ProfileData

from stepscope.analyse.step.step_trace_time import split
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy

#: Four devices on the host, and a recording around what each program does.
HEAD = """
import sys
from functools import partial
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0


def record(work):
    work()
    jax.profiler.start_trace(sys.argv[1], profiler_options=options)
    work()
    jax.profiler.stop_trace()
"""

MLP = """
def loss(weights, x):
    for number, weight in enumerate(weights):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ weight)
    return (x**2).mean()


@jax.jit
def step(weights, x):
    gradients = jax.grad(loss)(weights, x)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


weights, x = [jnp.full((256, 256), 0.01)] * 3, jnp.ones((64, 256))


def work():
    trained = weights
    for number in range(6):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            with jax.profiler.TraceAnnotation("load", batch=number, kind="toy", scale=0.5):
                batch = jax.device_put(np.ones((64, 256), np.float32))
            trained = step(trained, batch)
            jax.block_until_ready(trained)


record(work)
"""

SCAN = """
@jax.jit
def scanned(x):
    def body(carry, _):
        with jax.named_scope("block"):
            return jnp.tanh(carry @ carry), None

    return jax.lax.scan(body, x, None, length=7)[0]


x = jnp.full((64, 64), 0.01)
record(lambda: [scanned(x).block_until_ready() for _ in range(5)])
"""

SHARDED = """
mesh = Mesh(np.array(jax.devices()), ("d",))
everywhere = PartitionSpec("d")


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
def talk(x):
    with jax.named_scope("exchange"):
        summed = jax.lax.psum(x @ x.T, "d")
        gathered = jax.lax.all_gather(x, "d")
        scattered = jax.lax.psum_scatter(gathered.sum(0), "d", tiled=True)
        moved = jax.lax.ppermute(x, "d", [(i, (i + 1) % 4) for i in range(4)])
        swapped = jax.lax.all_to_all(x, "d", 1, 0, tiled=True)
    return summed.sum() + scattered.sum() + swapped.sum() + moved


x = jnp.ones((64, 32))
record(lambda: [talk(x).block_until_ready() for _ in range(5)])
"""

PARALLEL = """
@partial(jax.pmap, axis_name="d")
def mean(x):
    return jax.lax.pmean(jnp.tanh(x), "d")


x = jnp.ones((4, 64, 64))
record(lambda: [mean(x).block_until_ready() for _ in range(5)])
"""

EAGER = """
x = jnp.full((64, 64), 0.01)


def work():
    y = x
    for _ in range(8):
        y = jnp.tanh(y @ x) + 1.0
    y.block_until_ready()


record(work)
"""

PROGRAMS = {"mlp": MLP, "scan": SCAN, "sharded": SHARDED, "parallel": PARALLEL, "eager": EAGER}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The file of each program; the programs run at the same time."""
    folder = tmp_path_factory.mktemp("jax")
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    running = {
        name: subprocess.Popen([sys.executable, "-c", HEAD + program, str(folder / name)], env=environment)
        for name, program in PROGRAMS.items()
    }
    for name, process in running.items():
        assert process.wait(timeout=300) == 0, name
    yield {name: next((folder / name).glob("plugins/profile/*/*.xplane.pb")) for name in PROGRAMS}


@pytest.fixture(params=PROGRAMS)
def recording(request: pytest.FixtureRequest, recordings: dict[str, Path]) -> tuple[Path, Frames]:
    path = recordings[request.param]
    return path, read_files([path])


def kinds(frames: Frames, *chosen: str) -> pl.DataFrame:
    spans = frames["spans"].with_columns(pl.col("name", "kind", "phase").cast(pl.String))
    return spans.filter(pl.col("kind").is_in(chosen))


def known(frames: Frames) -> pl.DataFrame:
    """Operators with what is known of their instruction."""
    details = frames["operators"].select("instruction", "flops", id="span", module=pl.col("module").cast(pl.String))
    columns = pl.col("opcode", "scope").cast(pl.String)
    instructions = frames["instructions"].select(columns, "shape", instruction="id")
    joined = kinds(frames, "operator", "collective").join(details, on="id", how="left")
    return joined.join(instructions, on="instruction", how="left")


def test_operators_take_as_long_as_jax_says(recording: tuple[Path, Frames]) -> None:
    path, frames = recording
    expected: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for plane in ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if any(key == "hlo_op" for key, _ in event.stats):
                    expected[event.name] += event.duration_ns
                    calls[event.name] += 1
    operators = kinds(frames, "operator", "collective").group_by("name").agg(pl.len(), pl.col("dur").sum())
    found = {name: (count, total) for name, count, total in operators.iter_rows()}
    assert {name: count for name, (count, _) in found.items()} == calls
    for name, (count, total) in found.items():
        assert abs(total - expected[name]) <= count, name
    assert sum(calls.values()) > 4


def test_every_event_is_a_span_or_counted(recording: tuple[Path, Frames]) -> None:
    path, frames = recording
    planes = ProfileData.from_file(str(path)).planes
    events = sum(len(list(line.events)) for plane in planes for line in plane.lines)
    losses = dict(frames["losses"].select(pl.col("what").cast(pl.String), "count").iter_rows())
    assert frames["spans"].height + losses["event_noise"] == events
    assert set(losses) <= {"event_noise", "span_crosses_parent"}


def test_the_parts_of_every_step_add_up_to_it(recording: tuple[Path, Frames]) -> None:
    _, frames = recording
    result = split(lazy(frames))
    durations = result.windows.end - result.windows.start  # without steps one window over everything
    assert sum(parts for parts in result.parts.values()).tolist() == durations.tolist()
    assert frames["steps"].height >= 5 or frames["steps"].is_empty()


def test_every_operator_knows_its_instruction(recording: tuple[Path, Frames]) -> None:
    _, frames = recording
    operators = known(frames)
    assert operators.height > 4
    assert operators.select("instruction", "opcode", "shape").null_count().row(0) == (0, 0, 0)


def test_a_network_with_scopes(recordings: dict[str, Path]) -> None:
    frames = read_files([recordings["mlp"]])
    steps = frames["steps"]
    assert steps["number"].to_list() == list(range(6))
    assert set(steps["source"]) == {"declared"}
    operators = known(frames)
    layers = set(operators["module"].drop_nulls())
    assert {layer.rpartition("/")[2] for layer in layers} >= {"layer0", "layer1", "layer2"}
    assert {"forward", "backward"} <= set(operators["phase"])
    # Per layer a product forward and two backward, but for the gradient of the first input: each of 2·64·256·256.
    products = operators.filter((pl.col("flops") >= 2 * 64 * 256 * 256) & pl.col("step").is_not_null())
    assert products["flops"].sum() >= 6 * 8 * 2 * 64 * 256 * 256
    arguments = frames["arguments"].with_columns(pl.col("key").cast(pl.String))
    given = arguments.filter(pl.col("key") != "step_num")
    assert Counter(given["key"]) == {"batch": 6, "kind": 6, "scale": 6}
    assert set(given.filter(key="scale")["value"]) == {"0.5"}
    assert set(given.filter(key="kind")["value"]) == {'"toy"'}


def test_a_loop_in_the_program(recordings: dict[str, Path]) -> None:
    """What the loop contains counts its operations in every round; the loop itself does not count them again."""
    frames = read_files([recordings["scan"]])
    operators = known(frames)
    assert {"block"} <= set(operators["module"].drop_nulls())
    loops = operators.filter(pl.col("opcode") == "while")
    assert loops["flops"].null_count() == loops.height
    assert operators["flops"].sum() >= 5 * 7 * 2 * 64**3
    assert set(frames["steps"]["source"]) == {"inferred"}
    assert frames["steps"].height == 5


def test_communication_between_devices(recordings: dict[str, Path]) -> None:
    frames = read_files([recordings["sharded"]])
    found = frames["collectives"].with_columns(pl.col("operation", "group_ranks", "dtype").cast(pl.String))
    # Five runs on four devices.
    assert Counter(found["operation"]) == dict.fromkeys(
        ("allreduce", "allgather", "reduce_scatter", "permute", "alltoall"), 20
    )
    by_name = {row["operation"]: row for row in found.to_dicts()}
    piece = 16 * 32 * 4
    assert (by_name["allgather"]["bytes_in"], by_name["allgather"]["bytes_out"]) == (piece, 4 * piece)
    assert (by_name["reduce_scatter"]["bytes_in"], by_name["reduce_scatter"]["bytes_out"]) == (piece, piece // 4)
    assert by_name["permute"]["bytes_in"] == piece
    assert {row["group_ranks"] for name, row in by_name.items() if name != "permute"} == {"[0,1,2,3]"}
    assert set(kinds(frames, "collective")["phase"]) == {"communication"}


def test_one_program_on_several_devices(recordings: dict[str, Path]) -> None:
    frames = read_files([recordings["parallel"]])
    found = frames["collectives"]
    assert set(found["operation"].cast(pl.String)) == {"allreduce"}
    assert found.height == 20
    assert set(found["bytes_in"]) == {64 * 64 * 4}
    assert frames["steps"].height == 5


def test_operations_without_jit(recordings: dict[str, Path]) -> None:
    """Every operation is a program of its own, and none of them is a step."""
    frames = read_files([recordings["eager"]])
    programs = set(frames["instructions"]["program"].cast(pl.String))
    assert {"jit_tanh", "jit_add"} <= programs
    assert frames["steps"].is_empty()


#: What a program does without ``jax.jit``: every operation is a program of its own. Then one that compiles its step.
OP_BY_OP = """
weights, x = [jnp.full((256, 256), 0.01)] * 3, jnp.ones((64, 256))


def loss(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x**2).mean()


def work():
    trained = weights
    for _ in range(8):
        trained = [weight - 0.1 * gradient for weight, gradient in zip(trained, jax.grad(loss)(trained, x))]
    jax.block_until_ready(trained)


record(work)
"""

BESIDE = OP_BY_OP.replace(
    "def work", "step = jax.jit(lambda w, x: [a - 0.1 * b for a, b in zip(w, jax.grad(loss)(w, x))])\n\ndef work"
)
BESIDE = BESIDE.replace(
    "trained = [weight - 0.1 * gradient for weight, gradient in zip(trained, jax.grad(loss)(trained, x))]",
    "trained = step(trained, x / 1.01)",
)


@pytest.mark.parametrize(("program", "steps"), [(OP_BY_OP, 0), (BESIDE, 8)])
def test_only_a_compiled_step_is_a_step(tmp_path: Path, program: str, steps: int) -> None:
    """Given 8 × 3 products that run one by one, then none is a step; a compiled step with an operation beside it is."""
    (tmp_path / "program.py").write_text(HEAD + program)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True)
    (path,) = (tmp_path / "out").rglob("*.xplane.pb")
    assert len(read_files([path])["steps"]) == steps
