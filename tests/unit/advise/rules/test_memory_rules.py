"""Copies between layouts, dense gradients of embeddings and page faults are told by shapes, strides and counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.advise.rules.test_python_rules import TRAIN, sampled
from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN

IMAGES = [16, 32, 48, 48]
FIRST, LAST = [73728, 2304, 48, 1], [73728, 1, 1536, 32]


@pytest.mark.parametrize(
    ("strides", "phase", "causes"),
    [
        ([FIRST, LAST], "forward", ["layout-copies"]),
        ([FIRST, FIRST], "forward", []),
        ([FIRST, [0, 0, 0, 0]], "forward", []),
        ([FIRST, LAST], "backward", []),
    ],
)
def test_copies_into_another_order_are_told(strides: list[list[int]], phase: str, causes: list[str]) -> None:
    training = Training()
    training.call("aten::copy_", 3_000_000, [IMAGES, IMAGES], phase, strides=strides)
    assert training.causes() == causes


@pytest.mark.parametrize(
    ("optimizer", "rows", "causes"),
    [("SGD", 200_000, ["dense-embedding-gradient"]), ("Adam", 200_000, []), ("SGD", 1000, [])],
)
def test_a_gradient_of_all_rows_is_told(optimizer: str, rows: int, causes: list[str]) -> None:
    training = Training(torch__state={"optimizers": [{"class": optimizer}]})
    training.call("aten::embedding", 100_000, [[rows, 32], [512]], "forward")
    training.call("aten::embedding_dense_backward", 1_000_000, [[512, 32], [512]], "backward")
    training.call("aten::add_", 1_000_000, [[rows, 32], [rows, 32]], "optimizer")
    # A copy of the weights outside of training has the shape of the gradient, and is none
    training.call("aten::clone", 1_000_000, [[rows, 32]], "other")
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == pytest.approx(2_000_000, rel=0.01) for finding in found)


def test_a_library_reorders_the_images_of_convolutions_inside() -> None:
    speeds = {"framework": "torch", "one_core": {"float32": {"flops_per_s": 1e11, "size": 1024}}, "fault_ns": 1000}
    images, mixing = [16, 32, 48, 48], [32, 32, 1, 1]
    causes = {}
    for name, strides in (("planar", FIRST), ("channels last", LAST)):
        training = Training(machine__speeds=[speeds])
        training.run_steps(minor_faults=4_000)
        training.call("aten::copy_", 500_000, [IMAGES, IMAGES], "forward", strides=[FIRST, LAST])
        training.call("aten::convolution", 5_000_000, [images, mixing, [32]], "forward", strides=[strides, mixing, [1]],
                      concrete=["", "", "", "[1, 1]", "[0, 0]", "[1, 1]"])  # fmt: skip
        causes[name] = {finding.cause: finding.gain_ns for finding in training.findings()}
    # The page faults are those of the library's reordered copies. 75.5 MFLOP at half of 100 GFLOP/s take 1.5 ms.
    assert causes["planar"] == {"layout-copies": pytest.approx(450_000 + 5_000_000 - 1_510_000, rel=0.01)}
    assert causes["channels last"] == {"allocator-page-faults": pytest.approx(4_000 * 900)}


@pytest.mark.parametrize(
    ("copies", "mixing", "norm", "causes"),
    [
        (1, [32, 32, 1, 1], "aten::group_norm", ["layout-copies"]),
        (0, [32, 32, 1, 1], "aten::group_norm", []),
        (1, [32, 1, 3, 3], "aten::group_norm", []),
        (1, [32, 32, 1, 1], "aten::instance_norm", []),
    ],
    ids=["small copies between", "none between", "of one channel each", "a norm that takes no other order"],
)
def test_small_copies_tell_what_convolutions_reorder_inside(
    copies: int, mixing: list[int], norm: str, causes: list[str]
) -> None:
    speeds = {"framework": "torch", "one_core": {"float32": {"flops_per_s": 1e11, "size": 1024}}, "fault_ns": 1000}
    training = Training(machine__speeds=[speeds])
    for _ in range(copies):
        training.call("aten::copy_", 200_000, [IMAGES, IMAGES], "forward", strides=[FIRST, LAST])
    training.call(norm, 1_000, [IMAGES], "forward")
    images, geometry = [16, 32, 48, 48], ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]"]
    for _ in range(2):
        training.call(
            "aten::convolution",
            4_000_000,
            [images, mixing, [32]],
            "forward",
            strides=[FIRST, mixing, [1]],
            concrete=geometry,
        )
    assert training.causes() == causes


def test_what_a_convolution_copies_of_its_own_input_tells_no_order() -> None:
    # Given slow convolutions that copy their inputs themselves, as transposed ones do
    speeds = {"framework": "torch", "one_core": {"float32": {"flops_per_s": 1e11, "size": 1024}}, "fault_ns": 1000}
    training = Training(machine__speeds=[speeds])
    for _ in range(2):
        training.call("aten::convolution", 4_000_000, [IMAGES, [32, 32, 1, 1], [32]], "forward",
                      strides=[FIRST, [32, 1, 1, 1], [1]],
                      concrete=["", "", "", "[1, 1]", "[0, 0]", "[1, 1]"])  # fmt: skip
        training.call("aten::copy_", 100_000, [IMAGES, IMAGES], "forward", strides=[FIRST, LAST], inside=True)
    assert training.causes() == []


def test_fresh_pages_of_a_gradient_of_all_rows_are_its_own() -> None:
    training = Training(torch__state={"optimizers": [{"class": "SGD"}]}, machine__speeds=[{"fault_ns": 1000}])
    training.run_steps(minor_faults=4_000)
    training.call("aten::embedding", 100_000, [[200_000, 32], [512]], "forward")
    training.call("aten::embedding_dense_backward", 6_000_000, [[512, 32], [512]], "backward")
    assert training.causes() == ["dense-embedding-gradient"]


def keeping(kept: int, faults: int, phase: str) -> Training:
    """Steps that take so many bytes in a phase and keep them, with so many page faults each."""
    training = Training(5, machine__speeds=[{"framework": "torch", "fault_ns": 1000}])
    training.run_steps(minor_faults=faults)
    training.call("aten::clone", 5_000_000, phase=phase)
    for number in range(training.steps):
        begin = ORIGIN + number * STEP
        blocks = [(1, 8 << 20, 10), (1, -(8 << 20), 30)] + ([(2 + number, kept, 20)] if kept else [])
        for address, size, at in blocks:
            row = {"ts": begin + at, "device": "cpu", "address": address, "bytes": size}
            training.rank.add("allocations", **row, reserved=0)
    return training


def test_what_an_optimizer_keeps_of_its_steps_is_not_kept_by_the_program() -> None:
    assert keeping(8 << 20, 2_100, "optimizer").causes() == []
    assert keeping(8 << 20, 2_100, "forward").causes() == ["growing-memory"]


@pytest.mark.parametrize(
    ("kept", "faults", "causes"),
    [
        (8 << 20, 2_100, {"growing-memory": 2_100 * 900}),
        (2 << 20, 520, {"growing-memory": None}),
        (8 << 20, 0, {}),
        (64 << 10, 2_100, {}),
        (0, 2_100, {}),
    ],
    ids=["worth its time", "worth its memory", "not in the other steps", "too little", "given back"],
)
def test_memory_that_each_step_keeps_is_told(kept: int, faults: int, causes: dict[str, int | None]) -> None:
    training = keeping(kept, faults, "forward")
    assert {finding.cause: finding.gain_ns for finding in training.findings()} == {
        cause: gain if gain is None else pytest.approx(gain, rel=0.05) for cause, gain in causes.items()
    }


@pytest.mark.parametrize(("faults", "causes"), [(5_000, ["allocator-page-faults"]), (500, []), (None, [])])
def test_page_faults_in_every_step_are_told(faults: int | None, causes: list[str]) -> None:
    training = Training()
    training.run_steps(minor_faults=faults)
    assert training.causes() == causes


def test_page_faults_take_no_more_than_the_step() -> None:
    training = Training()
    training.run_steps(minor_faults=10_000_000)
    [finding] = training.findings()
    assert finding.gain_low_ns == finding.gain_ns == finding.gain_high_ns == STEP


def growing(more: int) -> Training:
    """Steps that join a tensor of 30,000 rows, longer by so many rows in each step, with 64 rows."""
    training = Training()
    training.call("aten::mm", 2_000_000, [[64, 64], [64, 64]], "forward")
    for number in range(training.steps):
        at = number * STEP + 2_000_010
        span = training.rank.span(0, "operator", at, 4_000_000, "aten::cat", step=number, phase="other")
        shapes = json.dumps([[[30_000 + more * number, 128], [64, 128]], []])
        training.rank.add("operators", span=span, shapes=shapes)
    return training


def test_a_tensor_that_each_step_copies_to_make_it_longer_is_told() -> None:
    [finding] = growing(64).findings()
    assert finding.cause == "growing-memory"
    assert finding.gain_ns == pytest.approx(4_000_000, rel=0.01)


def test_tensors_that_are_joined_and_do_not_grow_are_not() -> None:
    assert growing(0).causes() == []
    alone = Training()
    alone.call("aten::cat", 4_000_000, [[30_000, 128]])
    assert alone.causes() == []


ROWS, WORDS, WIDTH = [64, 24], 1000, 64


def one_hot(training: Training, phase: str = "other") -> None:
    shape = [*ROWS, WORDS]
    training.call("aten::fill_", 500_000, [shape, []], phase)
    training.call("aten::scatter_", 100_000, [shape, [], [*ROWS, 1], []], phase)


def test_a_product_with_one_hot_rows_saves_all_of_it() -> None:
    # Given one-hot rows of 1536 × 1000, their product with a matrix, and that of its gradient
    training = Training()
    one_hot(training)
    training.call("aten::mm", 2_000_000, [[1536, WORDS], [WORDS, WIDTH]], "forward", sequence=1)
    training.call("aten::mm", 3_000_000, [[WIDTH, 1536], [1536, WORDS]], "backward")
    training.call("aten::mm", 4_000_000, [[1536, 128], [128, WIDTH]], "forward", sequence=2)
    # Then what an embedding moves is all that stays
    [finding] = training.findings()
    assert finding.cause == "one-hot-product"
    assert "1,000 numbers" in finding.title
    assert finding.gain_ns == pytest.approx(5_600_000, rel=0.15)


def test_a_product_with_one_hot_rows_that_are_turned_adds_rows_up() -> None:
    # Given messages along 1536 edges that one-hot rows, turned, add up for 1000 nodes
    training = Training()
    one_hot(training)
    training.call("aten::mm", 2_000_000, [[WORDS, 1536], [1536, WIDTH]], "forward", sequence=1)
    training.call("aten::mm", 3_000_000, [[1536, WORDS], [WORDS, WIDTH]], "backward")
    [finding] = training.findings()
    assert finding.cause == "one-hot-product"
    assert "1,000 numbers" in finding.title
    assert "torch.zeros(1000, 64).index_add(0, " in finding.remedy
    assert finding.gain_ns == pytest.approx(5_600_000, rel=0.15)


def test_one_hot_targets_of_a_loss_are_in_no_product_of_the_forward() -> None:
    training = Training()
    one_hot(training)
    training.call("aten::mm", 4_000_000, [[1536, WIDTH], [WIDTH, WORDS]], "forward", sequence=1)
    training.call("aten::mm", 4_000_000, [[1536, WORDS], [WORDS, WIDTH]], "backward")
    assert training.causes() == []


def of_instructions(*ran: tuple[dict[str, Any], int], **facts: Any) -> Training:
    """Return steps that run the instructions of a program of JAX, each with its columns and its time, ns."""
    training = Training()
    training.rank.rows["metadata"].clear()
    for key, value in {"profiler": "xplane", **facts}.items():
        training.rank.add("metadata", key=key.replace("__", "."), value=json.dumps(value))
    said = {"program": "jit_train", "program_id": 4, "opcode": "fusion", "computation": "main"}
    for number, (columns, dur) in enumerate(ran, 1):
        training.rank.add("instructions", id=number, name=f"instruction.{number}", **(said | columns))
        training.call(f"instruction.{number}", dur)
    spans = {row["id"]: row["name"] for row in training.rank.rows["spans"]}
    for row in training.rank.rows["operators"]:
        row["instruction"] = int(spans[row["span"]].removeprefix("instruction."))
    return training


#: A copy of an array of 16 MiB that the source does not have.
COPY = {"opcode": "copy", "shape": "f32[2048,2048]", "operands": "f32[2048,2048]", "bytes": 2 * (16 << 20)}
UPDATE = {"opcode": "dynamic-update-slice", "scope": "jit(train)/scatter", "shape": "f32[2048,2048]"}


@pytest.mark.parametrize(
    ("copy", "donated", "causes"),
    [
        ({}, [], ["arguments-not-donated"]),
        ({}, [0], []),
        ({"source": "train.py:12"}, [], []),
        ({"scope": "jit(train)/copy"}, [], []),
        ({"operands": "f32[2048,1024]"}, [], []),
        ({"bytes": (8 << 20) - 1}, [], []),
        ({"opcode": "fusion"}, [], []),
        ({"program": "jit_evaluate"}, [], []),
    ],
    ids=["told", "donated", "a line's", "a scope's", "of another array", "small", "no copy", "of another program"],
)
def test_arguments_that_a_program_copies_before_it_changes_them_are_told(
    copy: dict[str, Any], donated: list[int], causes: list[str]
) -> None:
    jitted = {"jit": [{"function": "train", "donate_argnums": donated}]}
    training = of_instructions((COPY | copy, 2_000_000), (UPDATE, 5_000_000), jax__state=jitted)
    found = training.findings()
    assert [finding.cause for finding in found] == causes
    assert all(finding.gain_ns == finding.gain_low_ns == 2_000_000 for finding in found)
    assert all("jax.jit(train, donate_argnums=0)" in finding.remedy for finding in found)


def test_copies_of_arguments_cost_their_part_of_the_wait_for_threads_of_xla() -> None:
    # Given 9 ms in which XLA runs a program, 7 of them in operators, 2 of these in copies
    jitted = {"jit": [{"function": "train"}]}
    training = of_instructions((COPY, 2_000_000), (UPDATE, 5_000_000), jax__state=jitted)
    thread = training.rank.thread(2)
    for number in range(training.steps):
        training.rank.span(thread, "runtime", number * STEP, 9_000_000, "ThunkExecutor::Execute", step=number)
    [found] = training.findings()
    # Then two sevenths of the 2 ms of waits go with the copies
    assert found.cause == "arguments-not-donated"
    assert found.gain_low_ns == 2_000_000
    assert found.gain_ns == pytest.approx(2_000_000 + 2_000_000 * 2 / 7, rel=0.001)


@pytest.mark.parametrize(
    ("scope", "takes", "causes"),
    [
        ("jit(train)/jvp(jit(_one_hot))/convert_element_type", "f32[512,4000], f32[4000,64]", ["one-hot-product"]),
        ("jit(train)/jit(one_hot)/eq", "f32[512,4000], f32[4000,64]", ["one-hot-product"]),
        ("jit(train)/jvp()/dot_general", "f32[512,4000], f32[4000,64]", []),
        ("jit(train)/jvp(jit(_one_hot))/eq", "f32[512,4000], f32[512]", []),
        ("jit(train)/jvp(jit(_one_hot))/eq", "f32[512,4000], f32[512,4000]", []),
    ],
    ids=["older name", "name", "other rows", "a loss that sums", "a loss that multiplies"],
)
def test_a_product_with_one_hot_rows_is_told_by_the_instructions_of_jax(
    scope: str, takes: str, causes: list[str]
) -> None:
    said = {"scope": scope, "shape": "f32[512,4000]", "operands": "s32[512]"}
    training = of_instructions(
        (said, 3_000_000), ({"scope": "dot", "shape": "f32[512,64]", "operands": takes}, 3_000_000)
    )
    assert training.causes() == causes


@pytest.mark.parametrize(
    ("resident", "faults", "cause"),
    [(0.9, 40, "near-memory-limit"), (0.9, 0, "io-in-step"), (0.4, 40, "io-in-step")],
)
def test_pages_that_are_read_again_are_told_where_memory_is_nearly_full(
    resident: float, faults: int, cause: str
) -> None:
    training = sampled(
        [((TRAIN,), "io"), ((TRAIN,), "native")], machine={"memory_limit": 1 << 30, "memory_bytes": 1 << 40}
    )
    for row in training.rank.rows["run_steps"]:
        row["major_faults"] = faults
    place = {"ts": ORIGIN, "track": 0, "name": "process memory", "unit": "bytes"}
    training.rank.add("counters", **place, value=resident * (1 << 30))
    assert training.causes()[0] == cause


@pytest.mark.parametrize(
    ("between", "dur", "causes"),
    [
        ("", 2_000_000, ["one-hot-product"]),
        ("cast dygraph", 2_000_000, ["one-hot-product"]),
        ("sum dygraph", 2_000_000, []),
        ("", 10_000, []),
    ],
    ids=["right behind", "of another type", "of something else", "no larger than other operators"],
)  # fmt: skip
def test_a_product_right_behind_one_hot_rows_is_told_on_paddle_without_shapes(
    between: str, dur: int, causes: list[str]
) -> None:
    # Given one-hot rows and a product with them, another product, and their nodes in reverse order
    training = sampled([((TRAIN,), "native")], "paddle")
    for name in ("one_hot dygraph", between, "matmul dygraph", "tanh dygraph", "matmul dygraph", "relu dygraph"):
        if name:
            training.call(name, dur if name == "matmul dygraph" else 10_000, phase="forward")
        dur = 10_000 if name == "matmul dygraph" else dur
    for large in (10_000, 1_000_000 if causes else 10_000):
        training.call("Global_MatmulGradNode", large, phase="backward")
    found = [one for one in training.findings() if one.cause == "one-hot-product"]
    assert [one.cause for one in found] == causes
    assert all(one.gain_ns == pytest.approx(2_000_000 + 1_000_000, rel=0.05) for one in found)


def test_it_is_told_of_programs_of_to_static_too() -> None:
    training = sampled([((TRAIN,), "native")], "paddle")
    for name, dur in (("one_hot", 10_000), ("matmul", 2_000_000), ("tanh", 10_000), ("relu", 10_000)):
        training.call(f"pd_op.{name}", dur, phase="forward")
    training.call("pd_op.matmul_grad", 1_000_000, phase="backward")
    [found] = [one for one in training.findings() if one.cause == "one-hot-product"]
    assert found.gain_ns == pytest.approx(2_000_000 + 1_000_000, rel=0.05)
