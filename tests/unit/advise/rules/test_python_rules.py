"""Python in the step: what of a program's lines is outside of a framework, by the frames that were sampled there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepscope.advise.observed import Observed
from stepscope.advise.rank_findings import found_in
from tests.unit.advise.rules.trainings import STEP, STEPS, Training
from tests.unit.analyse.build import ORIGIN

TRAIN = ("/home/me/train.py", "train")
PACKAGES = "/home/me/envs/jax/lib/python3.11/site-packages"
Frames = Sequence[tuple[str, str]]


def sampled(looks: Sequence[tuple[Frames, str]], framework: str = "torch", thread: int = 100, **facts: Any) -> Training:
    """Return a training of 40 steps in which the looks come in turn, each for an equal part of the time."""
    training = Training(**facts)
    if framework != "torch":
        training.rank.rows["metadata"].clear()
        profilers = {"jax": '"xplane"', "paddle": '"paddle.profiler"', "mindspore": '"mindspore"'}
        training.rank.add("metadata", key="profiler", value=profilers[framework])
    training.run_steps()
    training.call("matmul", 1_000_000, [[64, 64], [64, 64]], "forward")
    see(training, looks, thread)
    return training


def see(training: Training, looks: Sequence[tuple[Frames, str]], thread: int = 100) -> None:
    first = 10 * thread
    for stack, (frames, _) in enumerate(looks):
        listed = [{"file": path, "line": 7, "function": name} for path, name in frames]
        training.rank.add("stacks", id=first + stack, frames=listed)
    for number in range(40):
        stack = number % len(looks)
        look = {"count": 1, "process": 100, "thread": thread, "name": f"Thread-{thread}", "worker": None}
        at, spent, state = ORIGIN + number * STEP, STEP - 1000, looks[stack][1]
        training.rank.add("samples", ts=at, dur=spent, cpu=spent, stack=first + stack, state=state, **look)


def test_a_framework_is_not_told_by_the_name_of_its_environment() -> None:
    numpy = (f"{PACKAGES}/numpy/lib/_arraypad_impl.py", "pad")
    jax = (f"{PACKAGES}/jax/_src/core.py", "Primitive.bind")
    assert sampled([((numpy, TRAIN), "python")], "jax").causes() == ["python-in-step"]
    assert sampled([((jax, TRAIN), "python")], "jax").causes() == []


@pytest.mark.parametrize(
    ("function", "causes"),
    [
        ("monkey_patch_math_tensor.<locals>._int_", ["python-in-step"]),
        ("Tensor.__getitem__", ["python-in-step"]),
        ("cross_entropy", []),
    ],
)
def test_reading_single_values_of_tensors_is_python_of_the_program(function: str, causes: list[str]) -> None:
    framework = (f"{PACKAGES}/paddle/base/dygraph/math_op_patch.py", function)
    forward = ((f"{PACKAGES}/paddle/nn/layer/layers.py", "Layer.__call__"), TRAIN)
    looks = [((framework, ("/home/me/metric.py", "count")), "python"), (forward, "native")]
    assert sampled(looks, "paddle").causes() == causes


def test_a_line_that_goes_through_a_model_is_told_and_one_that_calls_it_is_not() -> None:
    modules = f"{PACKAGES}/torch/nn/modules/module.py"
    average = ("/home/me/train.py", "average")
    goes = ((modules, "Module._save_to_state_dict"), (modules, "Module.state_dict"), average, TRAIN)
    calls = ((modules, "Module.__getattr__"), ("/home/me/net.py", "Net.forward"), (modules, "Module._call_impl"), TRAIN)
    [finding] = sampled([(goes, "python"), (goes, "native"), (calls, "python"), (calls, "native")]).findings()
    assert finding.cause == "python-in-step"
    assert "go through the parts of a model in Python: train.py:7" in finding.title
    assert "state = model.state_dict()" in finding.remedy
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "writes"), [("torch", "torch/_tensor_str.py"), ("paddle", "paddle/tensor/to_string.py")]
)
def test_tensors_that_become_text_are_told_once(framework: str, writes: str) -> None:
    # Given half of the looks in what writes tensors, which reads 80 of their numbers one by one
    text = ((f"{PACKAGES}/{writes}", "_str"), TRAIN)
    forward = ((f"{PACKAGES}/{framework}/nn/functional.py", "linear"), TRAIN)
    training = sampled([(text, "python"), (forward, "native")], framework)
    for _ in range(80):
        training.call("aten::item", 50_000, [[]])
    [finding] = training.findings()
    assert finding.cause == "python-in-step"
    assert "tensors are turned into text: train.py:7" in finding.title
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.01)


@pytest.mark.parametrize(
    ("reads", "told"), [(1, True), (5, False)], ids=["between operators", "waiting for all that runs"]
)
@pytest.mark.parametrize(
    ("framework", "reading", "computing"),
    [
        ("paddle", ("paddle/base/dygraph/tensor_patch_methods.py", "item"), ("paddle/tensor/math.py", "add")),
        ("jax", ("jax/_src/array.py", "ArrayImpl.__float__"), ("jax/_src/numpy/linalg.py", "norm")),
    ],
)
def test_a_line_that_computes_and_reads_single_values_is_told(
    framework: str, reading: tuple[str, str], computing: tuple[str, str], reads: int, told: bool
) -> None:
    read, compute = ((((f"{PACKAGES}/{file}", name), TRAIN), "native") for file, name in (reading, computing))
    training = sampled([read] * reads + [compute] * (5 - reads), framework)
    for number in range(40):
        training.call("add dygraph", 10_000, [[1]])
        for step in range(training.steps if framework == "jax" else 0):
            at = step * STEP + 3_000_000 + 20_000 * number
            training.rank.span(training.rank.thread(2), "runtime", at, 10_000, "PjitFunction(norm)", step=step)
    titles = [finding.title for finding in training.findings()]
    assert any("computes with single values and reads them one by one" in title for title in titles) == told


def test_numpy_that_a_framework_calls_belongs_to_the_call() -> None:
    # Given a line that computes and reads single values, which Paddle asks NumPy whether they are
    computing = ((f"{PACKAGES}/paddle/tensor/math.py", "add"), TRAIN)
    reading = ((f"{PACKAGES}/paddle/base/dygraph/math_op_patch.py", "_int_"), TRAIN)
    asking = ((f"{PACKAGES}/numpy/_core/fromnumeric.py", "prod"), *reading)
    training = sampled([(computing, "native")] * 2 + [(reading, "native"), (asking, "native")], "paddle")
    for _number in range(40):
        training.call("slice dygraph", 10_000, [[1]])
    [finding] = training.findings()
    # Then all of it is the line's
    assert "reads them one by one" in finding.title
    assert finding.title.startswith("10.0 ms of 10.0 ms")


@pytest.mark.parametrize(("others", "causes"), [(1, ["python-in-step"]), (9, [])])
def test_making_a_tensor_is_told_if_it_takes_much_of_the_step(others: int, causes: list[str]) -> None:
    frames = ((f"{PACKAGES}/jax/_src/dispatch.py", "apply_primitive"), (f"{PACKAGES}/jax/_src/numpy.py", "array"))
    rest = ((f"{PACKAGES}/jax/_src/core.py", "Primitive.bind"), TRAIN)
    looks = [((*frames, ("/home/me/data.py", "batch")), "lock"), *[(rest, "native")] * others]
    found = sampled(looks, "jax").findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(STEP / 2, rel=0.05) for finding in found)


@pytest.mark.parametrize(
    ("running", "others", "causes"), [(9_500_000, True, []), (1_000_000, True, ["lock-wait"]), (1_000_000, False, [])]
)
def test_waiting_for_a_program_that_xla_runs_is_no_wait_for_a_lock(
    running: int, others: bool, causes: list[str]
) -> None:
    # Given a wait in an own line, while XLA runs a program of which only a small part is an operator, and with or
    # without another thread of the program, which alone may hold a lock
    training = sampled([((TRAIN,), "lock")], "jax")
    if others:
        see(training, [((("/home/me/log.py", "write"),), "io")], thread=200)
    thread = training.rank.thread(2)
    for step in range(STEPS):
        training.rank.span(thread, "runtime", step * STEP, running, "ThunkExecutor::Execute", step=step)
    assert training.causes() == causes


@pytest.mark.parametrize(("called", "causes"), [("_FlatCallback.__call__", ["python-in-step"]), (None, [])])
def test_python_that_a_compiled_program_calls_back_is_python_of_the_step(called: str | None, causes: list[str]) -> None:
    # Given a training thread that waits for results, while another thread runs the program's Python, for XLA or not
    around = ((f"{PACKAGES}/jax/_src/callback.py", called),) if called else ()
    training = sampled([(((f"{PACKAGES}/jax/_src/array.py", "ArrayImpl.block_until_ready"), TRAIN), "lock")], "jax")
    see(training, [((("/home/me/loss.py", "weights_of"), *around), "python")], thread=200)
    findings = training.findings()
    assert [finding.cause for finding in findings] == causes
    assert all("calls back: weights_of" in finding.title for finding in findings)
    assert all(finding.gain_ns == pytest.approx(STEP, rel=0.05) for finding in findings)


def test_calling_a_jitted_function_is_no_python_of_the_line_that_calls_it() -> None:
    others = ((f"{PACKAGES}/jax/_src/core.py", "Primitive.bind"), ("/home/me/model.py", "loss"))
    training = sampled([((TRAIN,), "python"), *[(others, "native")] * 4], "jax")
    assert training.causes() == ["python-in-step"]
    thread = training.rank.thread(2)
    for step in range(STEPS):
        training.rank.span(thread, "runtime", step * STEP, 2_500_000, "PjitFunction(train)", step=step)
    assert training.causes() == []


def test_the_lock_of_python_that_a_loaders_thread_holds_is_a_matter_of_loading() -> None:
    looks = [((TRAIN,), "gil"), (((f"{PACKAGES}/paddle/nn/layer/layers.py", "Layer.__call__"), TRAIN), "native")]
    training = sampled(looks, "paddle")
    fetch = (f"{PACKAGES}/paddle/io/dataloader/fetcher.py", "_MapDatasetFetcher.fetch")
    see(training, [((("/home/me/data.py", "Photos.__getitem__"), fetch), "python")], thread=101)
    [finding] = training.findings()
    assert finding.cause == "data-loader-slow"
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.05)
    held = sampled(looks, "paddle")
    see(held, [((("/home/me/other.py", "poll"),), "python")], thread=101)
    assert held.causes() == ["gil-contention"]


@pytest.mark.parametrize(
    ("holder", "cause"),
    [
        ((("/home/me/data.py", "__getitem__"), (f"{PACKAGES}/paddle/io/dataloader/fetcher.py", "fetch")),
         "data-loader-slow"),
        ((("/home/me/other.py", "poll"),), "gil-contention"),
    ],
    ids=["a loader's thread", "another thread"],
)  # fmt: skip
def test_the_lock_of_python_costs_nothing_while_the_thread_that_holds_it_waits_for_a_core(
    holder: Frames, cause: str
) -> None:
    # Given a training thread that wants the lock half of the time, of which its holder has a core for a quarter
    wanted = [((TRAIN,), "gil"), (((f"{PACKAGES}/paddle/nn/layer/layers.py", "Layer.__call__"), TRAIN), "native")]
    training = sampled(wanted, "paddle")
    see(training, [(holder, "python"), (holder, "python"), *[(holder, "core")] * 6], thread=101)
    [finding] = training.findings()
    assert finding.cause == cause
    assert finding.gain_ns == pytest.approx(STEP / 8, rel=0.05)


def test_a_thread_that_holds_the_lock_of_python_costs_all_that_the_training_waits() -> None:
    # Given looks that see one step in five, because who looks wants the lock, too: the training thread wants it or
    # waits at the queue of that thread, and has the core for a tenth of its steps
    training = sampled([((TRAIN,), "gil"), ((TRAIN,), "gil"), ((("/lib/python3.11/queue.py", "get"), TRAIN), "lock")])
    training.rank.rows["samples"] = training.rank.rows["samples"][:8]
    see(training, [((("/home/me/feed.py", "encode"),), "python")], thread=101)
    training.rank.rows["run_steps"] = [{**row, "cpu": STEP // 10} for row in training.rank.rows["run_steps"]]
    [finding] = training.findings()
    assert finding.cause == "gil-contention"
    assert finding.gain_ns == pytest.approx(0.9 * STEP, rel=0.05)


@pytest.mark.parametrize(
    ("call_ns", "backward_ns", "waiting", "causes"),
    [
        (30_000, 5_000_000, 0.0, []),
        (1_000, 5_000_000, 0.0, ["python-in-step"]),
        (1_000, 8_000_000, 0.0, ["python-in-step"]),
        (1_000, 8_000_000, 0.6, []),
    ],
    ids=["calls", "other work", "beside long operators", "or what these wait for a core"],
)
def test_calling_operators_in_the_forward_is_no_python_in_the_step(
    call_ns: int, backward_ns: int, waiting: float, causes: list[str]
) -> None:
    # Given 60 operators a step of 5 µs each, in a line of the forward where 3 of 10 ms of native code are seen
    training = Training(steps=2, machine__speeds=[{"call_ns": call_ns}])
    training.run_steps(delay=round(waiting * STEP))
    for _ in range(60):
        training.call("aten::mul", 5_000, [[8, 8], [8, 8]], "forward")
    training.call("torch::autograd::node", backward_ns, phase="backward")
    modules, engine = (
        f"/venv/lib/python3.11/site-packages/torch/{file}" for file in ("nn/modules/module.py", "_tensor.py")
    )
    own = {"file": "/home/me/train.py", "line": 7, "function": "Net.forward"}
    called = {"file": modules, "line": 9, "function": "Module._call_impl"}
    backward = {"file": engine, "line": 9, "function": "Tensor.backward"}
    training.rank.add("stacks", id=0, frames=[own, called])
    training.rank.add("stacks", id=1, frames=[backward, own | {"line": 41, "function": "train"}])
    look = {"count": 1, "process": 100, "thread": 100, "name": "MainThread", "state": "native", "worker": None}
    for number in range(40):
        at, spent = ORIGIN + number * STEP, STEP - 1000
        training.rank.add(
            "samples", ts=at, dur=spent, cpu=round((1 - waiting) * spent), stack=int(number % 10 >= 3), **look
        )
    assert training.causes() == causes


MODEL = (((f"{PACKAGES}/torch/nn/modules/linear.py", "Linear.forward"), TRAIN), "native")


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("sleep", "sleep-in-step"),
        ("io", "io-in-step"),
        ("lock", "lock-wait"),
        ("child", "subprocess-in-step"),
        ("waiting", "wait-in-step"),
    ],
)
def test_a_wait_at_a_line_is_told_by_what_it_is_for(state: str, cause: str) -> None:
    [finding] = sampled([((("/home/me/log.py", "write"), TRAIN), state), *[MODEL] * 3]).findings()
    assert finding.cause == cause
    assert finding.gain_ns == pytest.approx(STEP / 4, rel=0.05)
    assert finding.title.endswith("log.py:7")
    # A wait inside of the framework is not the program's, and one that is seen too rarely is not told
    inside = (((f"{PACKAGES}/torch/cuda/streams.py", "Event.synchronize"), TRAIN), state)
    assert sampled([inside, *[MODEL] * 3]).causes() == []
    assert sampled([((TRAIN,), state), *[MODEL] * 19]).causes() == []


def collected(looks: int, pauses: int, others: Sequence[tuple[Frames, str]] = (MODEL,)) -> Training:
    """Return a training that is seen collecting in one of so many looks, and pauses in so many recorded steps."""
    training = sampled([((TRAIN,), "collecting"), *(others * (looks - 1))[: looks - 1]])
    thread = training.rank.thread(2)
    for step in range(pauses):
        training.rank.span(thread, "garbage", step * STEP + 1_000_000, STEP // looks, "collect 2", step=step)
    return training


def test_garbage_collection_is_told_if_most_steps_have_it() -> None:
    [finding] = collected(looks=4, pauses=STEPS).findings()
    assert finding.cause == "garbage-collection"
    assert finding.gain_ns == pytest.approx(STEP / 4, rel=0.05)
    assert "gc.freeze()" in finding.remedy
    # One collection in three steps is Python's own; so is one that takes little of the step
    assert collected(looks=4, pauses=1).causes() == []
    assert collected(looks=40, pauses=STEPS).causes() == []


@pytest.mark.parametrize(
    ("pauses", "of_run", "told"),
    [(STEPS, 0, True), (1, 8, True), (1, 2, False)],
    ids=["each step", "every fifth step", "now and then"],
)
def test_an_explicit_collection_is_taken_out_of_the_step(pauses: int, of_run: int, told: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import gc\n" + "\n" * 5 + "    gc.collect()\n")
    training = collected(looks=4, pauses=pauses)
    for number in range(of_run):
        training.rank.add("run_events", name="garbage collection", ts=ORIGIN + 5 * number * STEP, dur=STEP)
    for row in training.rank.rows["stacks"]:
        row["frames"] = [{**frame, "file": frame["file"].replace(TRAIN[0], str(script))} for frame in row["frames"]]
    after = script.stat().st_mtime_ns + 1
    found = found_in(Observed(training.rank.tables(), {"window": {"start_ns": after}}))
    assert [finding.cause for finding in found] == ["garbage-collection"] * told
    if not told:
        return
    [finding] = found
    assert f"at {script.name}:7" in finding.title or f"at {script}:7" in finding.title
    assert "Take gc.collect() out of the step" in finding.remedy


def test_what_is_larger_than_the_collection_comes_first() -> None:
    tokenize = ((("/home/me/words.py", "tokenize"), TRAIN), "python")
    assert collected(looks=4, pauses=STEPS, others=(tokenize,)).causes() == ["python-in-step", "garbage-collection"]


@pytest.mark.parametrize(
    ("looks", "causes"),
    [(3, ["python-in-step"]), (1, ["garbage-collection", "python-in-step"])],
    ids=["as long itself", "much shorter"],
)
def test_garbage_of_a_line_that_takes_as_long_itself_is_part_of_it(looks: int, causes: list[str]) -> None:
    rows = (("/home/me/words.py", "tokenize"), TRAIN)
    training = sampled([*[(rows, "python")] * looks, *[(rows, "collecting")] * 2, (MODEL[0], "native")])
    for step in range(training.steps):
        training.rank.span(
            training.rank.thread(2), "garbage", step * STEP + 1_000_000, 3_000_000, "collect 2", step=step
        )
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    if len(found) == 1:
        assert found[0].gain_ns == pytest.approx(STEP * 5 / 6, rel=0.03)
        assert "of it Python collects the garbage that it makes" in found[0].evidence[1].text


def test_a_line_that_runs_a_compiled_step_and_reads_its_result_is_no_loop() -> None:
    # Given a step whose forty operators a compiled program runs, and a line that calls it and waits for its result
    read = (((f"{PACKAGES}/jax/_src/array.py", "ArrayImpl.__float__"), TRAIN), "lock")
    call = (((f"{PACKAGES}/jax/_src/pjit.py", "cache_miss"), TRAIN), "native")
    training = sampled([read, call], "jax")
    for _ in range(40):
        training.call("fusion", 10_000, [[1]])
    assert not [one for one in training.findings() if "single values" in one.title]


def test_a_line_that_fetches_results_and_writes_them_is_told_without_the_wait_for_them() -> None:
    # Given a function that waits for arrays of JAX in six of ten looks, and writes them in two
    fetch = ((f"{PACKAGES}/jax/_src/array.py", "ArrayImpl._value"), ("/home/me/save.py", "save"), TRAIN)
    write = (("/usr/lib/python3.11/zipfile.py", "ZipFile.write"), ("/home/me/save.py", "save"), TRAIN)
    step = ((f"{PACKAGES}/jax/_src/core.py", "Primitive.bind"), TRAIN)
    looks = [*[(fetch, "lock")] * 6, *[(write, "native")] * 2, *[(step, "native")] * 2]
    (finding,) = sampled(looks, "jax").findings()
    assert "save (" in finding.title or "save.py" in finding.title
    assert finding.gain_ns == pytest.approx(0.2 * STEP, rel=0.05)


def test_what_a_line_does_itself_is_no_computing_for_which_another_line_waits() -> None:
    # Given half of the looks at a wait for results, as long as the program computes, and half at what pickles them
    save = ("/home/me/save.py", "save")
    training = sampled([((TRAIN,), "lock"), ((save, TRAIN), "native"), ((TRAIN,), "lock"), ((save,), "waiting")], "jax")
    training.call("fusion", STEP // 2 + 1_000_000, [[64, 64]])
    (finding,) = training.findings()
    assert "save" in finding.title
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.1)


@pytest.mark.parametrize(("calling", "causes"), [(100_000, ["python-in-step"]), (9_000_000, [])])
def test_native_time_in_a_line_that_calls_a_jitted_function_is_that_call(calling: int, causes: list[str]) -> None:
    training = sampled([((TRAIN,), "native")], "jax")
    thread = training.rank.thread(2)
    for step in range(STEPS):
        training.rank.span(thread, "runtime", step * STEP, calling, "PjitFunction(train)", step=step)
    assert training.causes() == causes


def test_native_time_inside_of_numpy_is_no_call_of_a_jitted_function() -> None:
    # Given jitted functions whose calls seem to last all of the step, and half of it inside of NumPy
    numpy = ((f"{PACKAGES}/numpy/lib/_histograms_impl.py", "histogram"), ("/home/me/train.py", "log"))
    training = sampled([(numpy, "native"), ((TRAIN,), "native")], "jax")
    thread = training.rank.thread(2)
    for step in range(STEPS):
        training.rank.span(thread, "runtime", step * STEP, STEP, "PjitFunction(train)", step=step)
    [finding] = training.findings()
    assert finding.cause == "python-in-step"
    assert finding.gain_ns == pytest.approx(STEP / 2, rel=0.05)


def test_python_that_jax_calls_back_on_the_training_thread_is_told_with_its_function() -> None:
    jax = f"{PACKAGES}/jax/_src"
    around = ((f"{jax}/debugging.py", "_flat_callback"), (f"{jax}/callback.py", "_wrapped_callback"), TRAIN)
    training = sampled([((("/home/me/log.py", "note"), *around), "python")] * 3 + [(around[1:], "native")], "jax")
    (finding,) = training.findings()
    assert "calls back: note (" in finding.title
    assert finding.gain_ns == pytest.approx(0.75 * STEP, rel=0.05)


@pytest.mark.parametrize(("until", "causes"), [(40, ["python-in-step"]), (20, [])], ids=["all the time", "early"])
def test_what_fills_a_cache_early_in_the_run_is_not_told(until: int, causes: list[str]) -> None:
    load = ((("/home/me/words.py", "load"), TRAIN), "python")
    training = sampled([load, MODEL])
    for row in training.rank.rows["samples"]:
        if row["ts"] >= ORIGIN + until * STEP:
            row |= {"stack": 1001, "state": MODEL[1]}
    assert training.causes() == causes


@pytest.mark.parametrize(("framework", "gain"), [("mindspore", 4_000_000), ("torch", 7_500_000)])
def test_a_step_still_takes_what_other_threads_compute_meanwhile(framework: str, gain: int) -> None:
    # Given a line that takes three quarters of the step, while MindSpore computes for six of ten milliseconds
    load = ((("/home/me/words.py", "load"), TRAIN), "python")
    training = sampled([load, load, load, MODEL], framework)
    if framework == "mindspore":
        training.call("Conv2D", 5_000_000, [[64, 64]])
    (finding,) = training.findings()
    assert finding.gain_ns == pytest.approx(gain, rel=0.05)
