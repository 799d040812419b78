"""``stepscope.profile`` records what JAX does, and changes nothing of it."""

from __future__ import annotations

import gc
import gzip
import importlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import psutil
import pytest
from jax._src import api
from jax.profiler import ProfileData
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxlib import _profiler

import stepscope
from stepscope.collect.jax.jax_collector import JaxCollector
from stepscope.collect.jax.jax_steps import BY_ANNOTATIONS, BY_CAPTURE, BY_GRADIENTS, BY_RUNS, BY_UPDATES, JaxSteps
from stepscope.collect.journal.journal import Journal
from stepscope.collect.options import Options
from stepscope.collect.protocol import Context
from stepscope.collect.session.inside_steps import evaluations
from stepscope.collect.steps import Stepped, StepsSeen
from tests.clocks import on_stopwatch
from tests.frameworks.jax.programs import capture, counts, events, python_calls, runs_of
from tests.frameworks.torch.programs import manifest, runs
from tests.unit.collect.reading import Read, read_journal

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"output": tmp_path / "runs", "analyse": "later"}


@jax.jit
def update(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        values = x
        for number, matrix in enumerate(weights):
            with jax.named_scope(f"layer{number}"):
                values = jnp.tanh(values @ matrix)
        return jax.nn.logsumexp(values)  # after which JAX leaves its post hook switched off

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, [matrix - 0.1 * gradient for matrix, gradient in zip(weights, gradients, strict=True)]


@jax.jit
def predict(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    return (x @ weights[0]).sum()


class Training:
    """Weights and a batch."""

    def __init__(self) -> None:
        self.weights = [jnp.full((32, 64), 0.1), jnp.full((64, 8), 0.1)]
        self.x = jnp.ones((16, 32))

    def step(self) -> Any:
        value, self.weights = update(self.weights, self.x)
        return value

    def run(self, steps: int, after: Callable[[], object] = lambda: None) -> np.ndarray:
        for _ in range(steps):
            self.step().block_until_ready()
            after()
        return np.asarray(self.weights[1])


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    """Have everything compiled once, and JAX's own threads running."""
    Training().run(2)
    predict(Training().weights, Training().x)


def only_run(options: dict[str, Any]) -> Path:
    (run,) = runs(options["output"])
    return run


def steps(run: Path) -> pl.DataFrame:
    """Return the steps as results see them."""
    return stepscope.open(run).ranks[0].tables["steps"].collect()


def journal(run: Path) -> Read:
    return read_journal(run / "rank0" / "capture" / "journal.ssj")


def test_a_window_holds_every_operation_of_every_run(options: dict[str, Any]) -> None:
    begin = time.time_ns()
    with stepscope.profile(**options, profile_memory=True) as profile:
        Training().run(6, profile.step)
    end = time.time_ns()
    run = only_run(options)
    assert runs_of(run, "jit_update") == 6
    assert counts(run)["jit_update"] % 6 == 0
    # and the file is JAX's own: its time, its versions and the program are in it
    content = capture(run).read_bytes()
    assert capture(run).name == f"{socket.gethostname()}.xplane.pb"
    assert capture(run).stat().st_mode & 0o777 == 0o600
    assert jax.__version__.encode() in content
    assert b"layer1" in content
    (start,) = [
        value
        for plane in ProfileData.from_file(str(capture(run))).planes
        for name, value in plane.stats
        if name == "profile_start_time"
    ]
    assert begin <= start <= end
    assert gzip.decompress((capture(run).parent / "memory.pb.gz").read_bytes())
    assert {path.name for path in capture(run).parent.iterdir()} == {capture(run).name, "memory.pb.gz"}
    found = manifest(run)
    assert found["losses"] == {}
    assert found["collectors"]["jax"] == {
        "version": jax.__version__,
        "backend": "cpu",
        "host_tracer_level": 2,
        "python_tracer_level": 0,
    }


def test_what_was_only_dispatched_is_in_the_window(options: dict[str, Any]) -> None:
    big = jax.jit(lambda x: (x @ x) * 1e-3)
    x = big(jnp.ones((600, 600))).block_until_ready()
    with stepscope.profile(**options):
        for _ in range(5):
            x = big(x)
    assert runs_of(only_run(options), "jit__lambda") == 5


def test_memory_and_python_calls_only_when_asked_for(options: dict[str, Any]) -> None:
    with stepscope.profile(**options):
        Training().run(2)
    assert [path.suffix for path in capture(only_run(options)).parent.iterdir()] == [".pb"]
    assert python_calls(only_run(options)) == []


def test_stacks(options: dict[str, Any]) -> None:
    with stepscope.profile(**options, with_stack=True):
        Training().run(2)
    calls = python_calls(only_run(options))
    assert sum(call.startswith("$test_collect.py") and call.endswith(" step") for call in calls) == 2
    assert "python_stacks" not in [path.stem for path in (only_run(options) / "rank0" / "capture").iterdir()]


def test_a_scan(options: dict[str, Any]) -> None:
    @jax.jit
    def epoch(weights: Any, batches: Any) -> Any:
        return jax.lax.scan(lambda carry, x: (update(carry, x)[1], x.sum()), weights, batches)[0]

    weights, batches = Training().weights, jnp.ones((7, 16, 32))
    with stepscope.profile(**options):
        for _ in range(3):
            weights = epoch(weights, batches)
    run = only_run(options)
    assert runs_of(run, "jit_epoch") == 3
    assert steps(run).height == 3


def test_collectives_of_four_devices(options: dict[str, Any]) -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def shared(weights: Any, x: Any) -> Any:
        gradient = jax.lax.pmean(x.T @ jnp.tanh(x @ weights), "data")
        return weights - 0.1 * gradient

    weights, x = jnp.full((8, 8), 0.1), jnp.ones((16, 8))
    with stepscope.profile(**options):
        for _ in range(4):
            weights = shared(weights, x)
    run = only_run(options)
    reduced = [event for event in events(capture(run)) if str(event.stats.get("hlo_op")).startswith("psum")]
    assert len(jax.devices()) == 4
    assert len(reduced) == 4 * 4
    assert steps(run).height == 4


def test_compilations_are_spans_of_their_function(options: dict[str, Any]) -> None:
    def fresh(x: Any) -> Any:
        return jnp.cos(x) * 3

    with stepscope.profile(**options):
        begin = time.perf_counter_ns()
        jax.jit(fresh)(jnp.ones(5)).block_until_ready()
        end = time.perf_counter_ns()
    spans = [span for span in journal(only_run(options)).spans if span["kind"] == "compile"]
    mine = [span for span in spans if "fresh" in span["name"]]
    assert [span["name"].split()[0] for span in mine] == ["trace", "lower", "compile"]
    assert sum(span["dur"] for span in mine) <= end - begin
    assert all(span["dur"] > 0 for span in mine)


def test_spans_of_the_program(options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options) as profile:
        for number in range(3):
            with stepscope.span("load", number=number), jax.profiler.TraceAnnotation("theirs", size=number):
                pass
            training.step()
            profile.step()
    run = only_run(options)
    spans = [span for span in journal(run).spans if span["kind"] == "annotation"]
    assert [(span["name"], span["args"]) for span in spans] == [("load", {"number": number}) for number in range(3)]
    assert [event.stats["size"] for event in events(capture(run)) if event.name == "theirs"] == [0, 1, 2]


# Steps


def test_steps_that_are_annotated_are_declared(options: dict[str, Any]) -> None:
    training = Training()
    with stepscope.profile(**options):
        for number in range(5):
            with jax.profiler.StepTraceAnnotation("train", step_num=10 + number):
                training.run(3)
    run = only_run(options)
    assert manifest(run)["steps"]["by"] == BY_CAPTURE
    assert steps(run)["number"].to_list() == [10, 11, 12, 13, 14]
    assert set(steps(run)["source"].to_list()) == {"declared"}


def test_steps_are_the_runs_of_what_takes_the_time(options: dict[str, Any]) -> None:
    training = Training()
    stamps = []
    with stepscope.profile(**options):
        for number in range(6):
            jax.random.split(jax.random.key(number))
            stamps.append(time.perf_counter_ns())
            training.step().block_until_ready()
            time.sleep(0.01)
    run = only_run(options)
    assert manifest(run)["steps"] == {"source": "inferred", "by": BY_CAPTURE, "recorded": 0}
    assert steps(run).height == 6
    # each begins when the program has asked for it, at once but where another process takes the core, and lasts until
    # the next one begins
    begins = on_stopwatch(steps(run)["ts"])
    assert all(before < begin < after for begin, (before, after) in zip(begins, pairwise(stamps), strict=False))
    assert min(begin - before for begin, before in zip(begins, stamps, strict=True)) < 3e6
    assert steps(run)["dur"][:5].to_list() == [after - before for before, after in pairwise(begins)]


@pytest.mark.parametrize("waits", [False, True], ids=["dispatched", "waited for"])
def test_a_step_ends_when_what_it_asked_for_is_computed(options: dict[str, Any], waits: bool) -> None:
    # Given: a program whose step takes milliseconds, and is asked for in microseconds
    big = jax.jit(lambda x: jnp.tanh(x @ x) * 1e-3)
    x = big(jnp.ones((800, 800))).block_until_ready()
    schedule = stepscope.schedule(wait=2, warmup=1, active=4, repeat=1)
    with stepscope.profile(**options, schedule=schedule) as profile:
        for _ in range(8):
            x = big(x)
            if waits:
                x.block_until_ready()
            profile.step()
    # Then: each step holds its run, from the first operation to the last
    opened = stepscope.open(only_run(options)).ranks[0].tables
    found = opened["steps"].collect()
    assert found["number"].to_list() == [3, 4, 5, 6]
    operators = opened["spans"].filter(pl.col("kind") == "operator").collect()
    inside = operators.filter(pl.col("step").is_not_null())
    product = inside.group_by("name").agg(pl.col("dur").sum()).sort("dur")["name"][-1]
    assert inside.filter(pl.col("name") == product).sort("ts")["step"].to_list() == [3, 4, 5, 6]


def test_steps_that_the_program_counts(options: dict[str, Any]) -> None:
    with stepscope.profile(**options) as profile:
        for _ in range(3):
            Training().run(2)
            profile.step()
    assert manifest(only_run(options))["steps"]["source"] == "declared"
    assert manifest(only_run(options))["steps"]["recorded"] == 3


def test_a_loop_that_compiles_nothing_has_no_steps(options: dict[str, Any]) -> None:
    weights, x = Training().weights[0], Training().x
    with stepscope.profile(**options):
        for _ in range(10):
            gradient = jax.grad(lambda weights: (jnp.tanh(x @ weights) ** 2).sum())(weights)
            weights = weights - 0.1 * gradient
    run = only_run(options)
    assert manifest(run)["steps"]["recorded"] == 0
    assert runs_of(run, "jit_tanh") == 10


class Seen:
    """What hooks tell of."""

    def __init__(self) -> None:
        self.told: list[Stepped] = []
        self.hooks = JaxSteps(self.told.append)
        self.hooks.install(late=False)

    def names(self) -> list[str]:
        self.hooks.remove()
        return [stepped.name for stepped in self.told]


class Model:
    """A step that is a method, in both ways."""

    def __init__(self) -> None:
        self.jitted = jax.jit(self.bound)

    @partial(jax.jit, static_argnums=0)
    def method(self, weights: Any) -> Any:
        return weights * 0.9

    def bound(self, weights: Any) -> Any:
        return weights * 0.8


def with_effects(weights: Any) -> Any:
    jax.debug.callback(lambda _: None, weights[0])
    return weights * 0.7


def donated(weights: Any) -> Any:
    return weights * 0.6


def test_annotations_count_and_nothing_else() -> None:
    class Mine(jax.profiler.StepTraceAnnotation):
        pass

    training = Training()
    found = Seen()
    training.run(3)
    for number in range(5):
        with Mine("train", step_num=number) as annotation:
            assert type(annotation) is Mine
            with jax.profiler.StepTraceAnnotation("inner", step_num=number):
                training.run(3)
    found.hooks.remove()
    told = [stepped for stepped in found.told if stepped.declared]
    assert (len(found.told), len(told)) == (3 + 5, 5)
    assert {stepped.by for stepped in told} == {BY_ANNOTATIONS}


def test_what_updates_is_a_step_and_nothing_else() -> None:
    training = Training()
    found = Seen()
    for number in range(6):
        jax.random.split(jax.random.key(number))
        training.step()
        predict(training.weights, training.x)
    assert found.names() == ["update"] * 6
    assert {stepped.by for stepped in found.told} == {BY_UPDATES}
    # and the first run, of which it was not known yet, was told of with its own time
    assert [stepped.late for stepped in found.told] == [True, *[False] * 5]
    assert 0 < found.told[0].at_ns < found.told[1].at_ns


def test_inference_is_the_runs_of_one_program() -> None:
    training = Training()
    found = Seen()
    for _ in range(10):
        predict(training.weights, training.x)
    assert found.names() == ["predict"] * 10
    assert {stepped.by for stepped in found.told} == {BY_RUNS}


def test_what_computes_no_gradient_is_no_step_beside_what_does() -> None:
    # Given a simulated environment that is given back what it returned, 20 times an iteration, and a training
    def advance(state: Any) -> Any:
        return jnp.tanh(state) + 0.1

    def train(weights: Any) -> Any:
        return weights - 0.1 * jax.grad(lambda weights: jnp.square(weights).sum())(weights)

    found, seen = Seen(), StepsSeen()
    jitted, training, state, weights = jax.jit(advance), jax.jit(train), jnp.ones(4), jnp.ones(3)
    for _ in range(4):
        for _ in range(20):
            state = jitted(state)
        weights = training(weights)
    assert set(found.names()) == {"advance", "train"}
    for stepped in found.told:
        seen.add(stepped, learning=True)
    assert seen.finder.number == 4


def test_the_sum_of_gradients_of_single_samples_is_no_step_beside_the_update() -> None:
    # Given a training that adds up the gradients of 60 samples by a compiled program, and updates by another
    gradient = jax.jit(lambda weights, x: jax.grad(lambda weights: jnp.square(weights @ x).sum())(weights))

    def add(total: Any, one: Any) -> Any:
        return total + one

    def apply(weights: Any, total: Any) -> Any:
        return weights - 0.1 * total

    found, seen = Seen(), StepsSeen()
    adding, applying, weights, x = jax.jit(add), jax.jit(apply), jnp.ones((3, 3)), jnp.ones(3)
    for _ in range(5):
        total = jnp.zeros((3, 3))
        for _ in range(60):
            total = adding(total, gradient(weights, x))
        weights = applying(weights, total)
    found.hooks.remove()
    # Then only the update is told, so that no window begins among the samples of the first step
    assert set(found.names()) == {"apply"}
    for stepped in found.told:
        seen.add(stepped, learning=True)
    assert seen.finder.number == 5


def measured(weights: Any, x: Any) -> Any:
    """A function of any name that runs a compiled program."""
    return float(predict(weights, x).sum())


@pytest.mark.parametrize("kind", ["evaluates", "acts", "feeds", "learns", "does not see what is trained"])
def test_what_is_given_the_trained_state_and_gives_nothing_back_evaluates(kind: str) -> None:
    # Given a training, and every third step a program that is given its weights, or others
    training, found, told = Training(), Seen(), []
    drawn = jax.jit(lambda weights, key: weights[0] + jax.random.normal(key, weights[0].shape))
    scaled = jax.jit(lambda weights: [0.9 * matrix for matrix in weights])
    gradient = jax.jit(lambda weights: jax.grad(lambda first: jnp.square(first).sum())(weights[0]))
    others = [matrix + 1 for matrix in training.weights]
    evaluations.append(lambda start, end, file, function: told.append((end > start, Path(file).name, function)))
    try:
        for number in range(30):
            training.step()
            if number % 3 == 2:
                if kind == "evaluates":
                    measured(training.weights, training.x)
                elif kind == "acts":
                    drawn(training.weights, jax.random.key(number))
                elif kind == "feeds":
                    training.weights = scaled(training.weights)
                elif kind == "learns":
                    gradient(training.weights)
                else:
                    measured(others, training.x)
    finally:
        evaluations.pop()
    assert "update" in found.names()
    # Then its runs are told from the second one on that a step follows, with the function that contains them alone
    assert told == [(True, "test_collect.py", "measured")] * 8 * (kind == "evaluates")


@pytest.mark.parametrize("own", [True, False])
def test_what_a_package_jits_for_itself_is_no_step_beside_the_programs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    # Given an optimizer of an installed package, which runs a jitted function of its own for both averages
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "averaging.py").write_text("import jax\n\n@jax.jit\ndef corrected(x):\n    return x / 0.9\n")
    monkeypatch.syspath_prepend(str(installed))
    averaging = importlib.import_module("averaging")
    training = Training()
    found = Seen()
    for _ in range(10):
        if own:
            predict(training.weights, training.x)
        averaging.corrected(jnp.ones(4))
        averaging.corrected(jnp.ones(3))
    assert set(found.names()) == ({"predict"} if own else {"corrected"})


def test_a_training_without_jit_is_its_gradients() -> None:
    # Given a loss whose gradient is taken operator by operator, by a function that is made anew in each step
    def loss(weights: Any, x: Any) -> Any:
        return jnp.square(x @ weights).mean()

    found = Seen()
    weights, x = jnp.ones((4, 3)), jnp.ones((2, 4))
    for _ in range(10):
        weights = weights - 0.1 * jax.grad(loss)(weights, x)
    assert found.names() == ["loss"] * 10
    assert {stepped.by for stepped in found.told} == {BY_GRADIENTS}
    assert [stepped.late for stepped in found.told] == [*[True] * 7, *[False] * 3]


def test_gradients_inside_of_jit_are_no_steps_beside_an_update() -> None:
    training = Training()
    found = Seen()
    for _ in range(10):
        training.step()
        jax.grad(lambda weights: jnp.square(weights).sum())(jnp.ones(3))
    assert {stepped.by for stepped in found.told} == {BY_UPDATES}
    assert found.names() == ["update"] * 10


@pytest.mark.parametrize(
    ("make", "name", "seen"),
    [
        (lambda: Model().method, "method", 5),
        (lambda: Model().jitted, "bound", 5),
        (lambda: jax.jit(with_effects), "with_effects", 5),
        (lambda: jax.jit(donated, donate_argnums=0), "donated", 5),
        (lambda: jax.jit(donated).lower(jnp.ones(4)).compile(), "PjitFunction", 4),
    ],
    ids=["method", "bound method", "effects", "donation", "ahead of time"],
)
def test_whatever_is_compiled_is_seen(make: Callable[[], Any], name: str, seen: int) -> None:
    program, weights = make(), jnp.ones(4)
    found = Seen()
    for _ in range(5):
        weights = program(weights)
    assert found.names() == [name] * seen


def test_pmap_is_seen() -> None:
    program, weights = jax.pmap(lambda weights: weights * 0.5), jnp.ones((4, 3))
    found = Seen()
    for _ in range(5):
        weights = program(weights)
    assert len(found.names()) == 5


def test_threads_that_train_are_seen() -> None:
    found = Seen()
    thread = threading.Thread(target=lambda: Training().run(4))
    thread.start()
    thread.join()
    assert found.names() == ["update"] * 4


def test_jitted_functions_stay_what_they_are() -> None:
    before = type(update), update.lower, update.trace
    found = Seen()
    inside = type(update), update.lower, update.trace
    lowered = update.lower(Training().weights, Training().x).as_text()
    batched = jax.vmap(predict, (None, 0))(Training().weights, jnp.ones((3, 16, 32)))
    found.names()
    assert before[0] is inside[0]
    assert update.lower(Training().weights, Training().x).as_text() == lowered
    assert batched.shape == (3,)


def test_nothing_is_compiled_again_because_of_us(options: dict[str, Any]) -> None:
    Training().run(2)
    size = update._cache_size()
    with stepscope.profile(**options):
        Training().run(3)
    Training().run(2)
    assert update._cache_size() == size
    spans = [span["name"] for span in journal(only_run(options)).spans if span["kind"] == "compile"]
    assert [name for name in spans if "update" in name] == []


def test_jaxs_own_check_for_nan_goes_on() -> None:
    # Given: a thread in which JAX has not switched its own check off
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check_for_nan).result()


def check_for_nan() -> None:
    broken = jax.jit(lambda x: jnp.log(x))
    jax.config.update("jax_debug_nans", True)
    try:
        broken(jnp.ones(3))
        found = Seen()
        with pytest.raises(FloatingPointError):
            broken(-jnp.ones(3))
        jax.config.update("jax_debug_nans", False)
        broken(-jnp.ones(3))
        jax.config.update("jax_debug_nans", True)
        with pytest.raises(FloatingPointError):
            broken(-jnp.ones(3))
        found.names()
        with pytest.raises(FloatingPointError):
            broken(-jnp.ones(3))
    finally:
        jax.config.update("jax_debug_nans", False)
    assert api._post_hook_state.get_global() is None


# Law 1, and what other profilers do


def test_training_has_the_same_result_to_the_last_bit(options: dict[str, Any]) -> None:
    alone = Training().run(5)
    with stepscope.profile(**options, profile_memory=True, with_stack=True):
        watched = Training().run(5)
    assert np.array_equal(alone, watched)


def test_nothing_reaches_the_programs_output(options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    with stepscope.profile(**options, profile_memory=True, with_stack=True, quiet=True):
        Training().run(2)
    assert capfd.readouterr() == ("", "")


def test_no_port_is_opened(options: dict[str, Any]) -> None:
    def listening() -> set[str]:
        sockets = psutil.Process().net_connections("tcp")
        return {str(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}

    before = listening()
    with stepscope.profile(**options):
        Training().run(1)
        assert listening() <= before


def test_the_programs_own_trace_comes_first(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    with stepscope.profile(**options) as profile:
        training.run(2, profile.step)
        with jax.profiler.trace(tmp_path / "theirs"):
            training.run(3, profile.step)
        training.run(1, profile.step)
    # Then: the program has its trace, and we have what was before it
    (theirs,) = (tmp_path / "theirs").rglob("*.xplane.pb")
    assert (
        len({event.stats["run_id"] for event in events(theirs) if event.stats.get("hlo_module") == "jit_update"}) == 3
    )
    run = only_run(options)
    assert runs_of(run, "jit_update") == 2
    assert manifest(run)["collectors"]["jax"]["ended_early"].startswith("the program started a profiler of JAX, at ")
    assert manifest(run)["steps"]["recorded"] == 6
    # and what was not recorded is counted, not shown as idle
    tables = stepscope.open(run).ranks[0].tables
    losses = {row["what"]: row["count"] for row in tables["losses"].collect().to_dicts()}
    assert (losses["recording_ended_early"], losses["steps_not_recorded"]) == (1, 4)
    assert tables["steps"].collect()["number"].to_list() == [0, 1]


def test_a_trace_that_runs_already_is_left_alone(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    with jax.profiler.trace(tmp_path / "theirs"), stepscope.profile(**options) as profile:
        training.run(3, profile.step)
    (theirs,) = (tmp_path / "theirs").rglob("*.xplane.pb")
    assert (
        len({event.stats["run_id"] for event in events(theirs) if event.stats.get("hlo_module") == "jit_update"}) == 3
    )
    run = only_run(options)
    assert "another profiler of JAX" in manifest(run)["collectors"]["jax"]["unavailable"]
    assert manifest(run)["steps"]["recorded"] == 3


def test_a_trace_may_start_while_ours_is_prepared(options: dict[str, Any], tmp_path: Path) -> None:
    training = Training()
    with stepscope.profile(**options, schedule=stepscope.schedule(wait=1, warmup=2, active=4, repeat=1)) as profile:
        training.run(2, profile.step)
        with jax.profiler.trace(tmp_path / "theirs"):
            training.run(3, profile.step)
        training.run(3, profile.step)
    (theirs,) = (tmp_path / "theirs").rglob("*.xplane.pb")
    assert (
        len({event.stats["run_id"] for event in events(theirs) if event.stats.get("hlo_module") == "jit_update"}) == 3
    )
    run = only_run(options)
    assert "another profiler of JAX" in manifest(run)["collectors"]["jax"]["failed"]
    rank = stepscope.open(run).ranks[0]
    losses = {row["what"] for row in rank.tables["losses"].collect().to_dicts() if row["severity"] != "info"}
    assert losses == {"collector_failed"}
    shown = rank.results["step_trace_time"]
    assert shown.height == shown["Idle"].null_count() == 4


def test_an_array_that_failed_fails_the_program_and_not_the_recording(options: dict[str, Any]) -> None:
    def fail(x: Any) -> Any:
        if x > 0:
            message = "the program's own"
            raise ValueError(message)
        return x

    broken = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x))
    slow = jax.jit(lambda x: (x @ x).sum())
    x = jnp.ones((1000, 1000))
    broken(slow(x) * 0).block_until_ready()
    with stepscope.profile(**options):
        result = broken(slow(x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="the program's own"):
        result.block_until_ready()
    assert "failed" not in manifest(only_run(options))["collectors"]["jax"]


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("with_stack", [False, True])
def test_a_forked_child_ends_well(options: dict[str, Any], with_stack: bool) -> None:
    training = Training()
    with stepscope.profile(**options, with_stack=with_stack) as profile:
        training.run(2, profile.step)
        child = os.fork()
        if child == 0:
            profile.step()
            profile.stop()
            os._exit(0)
        signal.alarm(30)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(0)
        training.run(2, profile.step)
    assert status == 0
    assert runs_of(only_run(options), "jit_update") == 4


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    (tmp_path / "capture").mkdir()
    journal = Journal(tmp_path / "journal.ssj")
    yield Context(0, tmp_path / "capture", Options(profile_memory=True), journal)
    journal.close()


@pytest.mark.parametrize("reached", ["made", "prepared"])
def test_stop_before_start(context: Context, reached: str) -> None:
    collector = JaxCollector()
    if reached == "prepared":
        collector.prepare(context)
    assert collector.stop() == []


def test_the_collectors_description_is_json_at_any_time(context: Context) -> None:
    collector = JaxCollector()
    for act in (collector.available, lambda: collector.prepare(context), collector.start, collector.stop):
        act()
        assert json.loads(json.dumps(collector.describe())) == collector.describe()


@pytest.mark.slow
def test_collectors_leave_nothing_after_a_thousand_cycles(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.ssj")
    training = Training()

    def cycle(number: int) -> None:
        capture = tmp_path / f"{number}"
        capture.mkdir()
        collector = JaxCollector()
        assert collector.available() is None
        collector.prepare(Context(0, capture, Options(profile_memory=number % 10 == 0), journal))
        collector.start()
        training.step()
        for path in collector.stop():
            path.unlink()
        (capture / "jax").rmdir()
        capture.rmdir()

    for number in range(200):
        cycle(number)
    gc.collect()
    before, threads = resident(), tasks()
    for number in range(200, 1200):
        cycle(number)
    gc.collect()
    journal.close()
    assert tasks() <= threads
    assert resident() - before < 1000 * 1024  # 1 KiB a cycle
    assert not _profiler.TraceMe.is_enabled()


def resident() -> int:
    """Return the bytes of this process's own memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def tasks() -> int:
    """Return the number of this process's threads, also those of C++."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())
