"""Collectives are told by their number and sizes, settings of DistributedDataParallel by its own functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.advise.rules.trainings import STEP, STEPS, Training
from tests.unit.analyse.build import ORIGIN


def exchanging(sizes: list[int | str], dur: int = 200_000, operation: str = "allreduce") -> Training:
    """Return a training whose steps run collectives of these sizes, and operators of the phases between them."""
    training = Training()
    for step in range(STEPS):
        for number, size in enumerate(sizes):
            if isinstance(size, str):
                at = step * STEP + number * (dur + 1000)
                training.rank.span(0, "operator", at, dur, f"aten::{size}", step=step, phase=size)
                continue
            at = step * STEP + number * (dur + 1000)
            span = training.rank.span(0, "collective", at, dur, "all_reduce", step=step, phase="communication")
            training.rank.add("collectives", span=span, operation=operation, group="0", bytes_in=size)
    return training


@pytest.mark.parametrize(
    ("sizes", "causes"),
    [
        ([4096] * 30, ["small-collectives"]),
        ([4096] * 4, []),
        (["forward", "backward", 20 << 20, 10 << 20] * 4, ["unneeded-collectives"]),
        (["forward", "backward", 20 << 20, 10 << 20], []),
        (["forward", "backward", 20 << 20, "backward", 20 << 20, "backward", 20 << 20], []),
        (["forward", 20 << 20, "forward", "backward", 20 << 20] * 2, []),
        (["forward", "backward", "forward", "backward", 20 << 20, 20 << 20], []),
        (["forward", 8 << 20, "backward", 8 << 20, 20 << 20] * 3, ["unneeded-collectives"]),
    ],
    ids=[
        "many small ones",
        "a few small ones",
        "each part",
        "once",
        "buckets of one size",
        "tensor parallel",
        "pipeline",
        "tensor parallel and each part",
    ],
)
def test_collectives_are_told_by_number_and_size(sizes: list[int | str], causes: list[str]) -> None:
    assert exchanging(sizes).causes() == causes


@pytest.mark.parametrize(
    ("operation", "causes"),
    [
        *((name, ["small-collectives"]) for name in ("all_gather", "_allgather_base", "reduce_scatter", "broadcast")),
        *((name, []) for name in ("alltoall", "all_to_all", "send", "recv", "barrier")),
    ],
)
def test_small_collectives_are_those_that_can_be_joined(operation: str, causes: list[str]) -> None:
    assert exchanging([4096] * 30, operation=operation).causes() == causes


def on_device(exchanges: list[tuple[str, int, int]], hiccup: int = 1) -> Training:
    """Return a training on a GPU: 4 ms of backward, and behind it collectives of this name, bytes and part of a step.

    In the first step the last of them waits ``hiccup`` times as long as in the others.
    """
    training = Training(steps=5)
    kernels = training.rank.stream()
    for step in range(training.steps):
        at = step * STEP
        training.rank.span(kernels, "kernel", at, 4_000_000, "gemm", step=step, phase="backward")
        at += 4_000_000
        for place, (name, size, dur) in enumerate(exchanges):
            longer = hiccup if step == 0 and place == len(exchanges) - 1 else 1
            span = training.rank.span(
                kernels, "collective", at, longer * dur, "ncclDevKernel", step=step, phase="communication"
            )
            training.rank.add("collectives", span=span, operation=name, group="0", bytes_in=size)
            at += longer * dur
    return training


@pytest.mark.parametrize(
    ("exchanges", "causes"),
    [
        ([("allreduce", 100 << 20, 2_000_000)], ["communication-not-overlapped"]),
        ([("_allgather_base", 100 << 20, 2_000_000), ("allreduce", 4, 10_000)], ["exposed-communication"]),
        ([("_reduce_scatter_base", 100 << 20, 2_000_000)], ["communication-not-overlapped"]),
        ([("recv", 100 << 20, 2_000_000), ("allreduce", 100 << 20, 100_000)], ["exposed-communication"]),
    ],
    ids=["gradients", "the norm of gradients alone", "sharded", "messages, and a short sum"],
)
def test_gradients_are_behind_the_backward_as_far_as_their_own_sums_are(
    exchanges: list[tuple[str, int, int]], causes: list[str]
) -> None:
    assert on_device(exchanges).causes() == causes


@pytest.mark.parametrize(("hiccup", "causes"), [(1, []), (4, [])])
def test_one_step_in_which_a_rank_waits_is_no_communication(hiccup: int, causes: list[str]) -> None:
    assert on_device([("_allgather_base", 100 << 20, 1_500_000)], hiccup).causes() == causes


@pytest.mark.parametrize(
    ("norms", "cause"), [(12, "synchronised-batch-norm"), (2, "small-collectives")], ids=["most", "a few of them"]
)
def test_small_collectives_of_layers_that_exchange_statistics_are_theirs(norms: int, cause: str) -> None:
    training = exchanging([4096] * 30)
    training.rank.add("metadata", key="torch.state", value=json.dumps({"models": [{"sync_batchnorm": norms}]}))
    [finding] = training.findings()
    assert finding.cause == cause
    assert ("SyncBatchNorm" in finding.title) == (cause == "synchronised-batch-norm")


@pytest.mark.parametrize(
    ("file", "function"),
    [("torch/distributed/distributed_c10d.py", "all_reduce"), ("torch/autograd/graph.py", "_engine_run_backward")],
)
@pytest.mark.parametrize("delay", [0, STEP // 4])
def test_a_wait_for_a_collective_inside_of_an_operator_is_communication(file: str, function: str, delay: int) -> None:
    # Given steps of 10 ms in an operator that waits for collectives on another thread half of the time
    training = Training()
    training.run_steps(delay=delay)
    training.call("Sum", 9_990_000)
    other = training.rank.thread(2)
    for step in range(STEPS):
        for number in range(20):
            at = step * STEP + number * 500_000
            span = training.rank.span(other, "collective", at, 300_000, "gloo:all_reduce", step=step)
            training.rank.add("collectives", span=span, operation="all_reduce", group="0", bytes_in=128)
    waits = {"file": f"/venv/lib/python3.11/site-packages/{file}", "line": 4, "function": function}
    program = {"file": "/home/me/train.py", "line": 9, "function": "main"}
    training.rank.add("stacks", id=0, frames=[waits, program])
    training.rank.add("stacks", id=1, frames=[program])
    for number in range(40):
        for stack, state in ((0, "lock"), (1, "native")):
            training.rank.add(
                "samples", ts=ORIGIN + number * STEP + stack * STEP // 2, dur=STEP // 2, count=1,
                cpu=stack * (STEP // 2 - delay), process=100, thread=100, name="MainThread", state=state, stack=stack,
            )  # fmt: skip
    [finding] = training.findings()
    assert finding.cause == "small-collectives"
    assert finding.gain_ns == pytest.approx(0.9 * STEP / 2, rel=0.05)


DDP = "/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"


def parallel(function: str, gradients: int, state: str = "native", **ddp: Any) -> Training:
    """Steps of which a fifth lies in a function of DistributedDataParallel, with so many gradients of 4 parameters."""
    model = {"trainable_parameters": 4, "batchnorm": 2, "buffer_bytes_by_dtype": {"float32": 4096}, "ddp": ddp}
    training = Training(torch__state={"models": [model]})
    training.run_steps()
    training.call("aten::mm", 6_000_000, [[64, 64], [64, 64]], "forward")
    for _ in range(gradients):
        training.call("torch::autograd::AccumulateGrad", 10_000, [[64, 64]], "backward")
    program = {"file": "/home/me/train.py", "line": 9, "function": "main"}
    inside = {"file": DDP, "line": 4, "function": f"DistributedDataParallel.{function}"}
    for stack, frames in enumerate(([inside, program], [program])):
        training.rank.add("stacks", id=stack, frames=frames)
    for number in range(40):
        for stack, at, dur in ((0, 0, 2_000_000), (1, 2_000_000, 8_000_000)):
            training.rank.add(
                "samples", ts=ORIGIN + number * STEP + at, dur=dur, cpu=dur, count=2, process=7, thread=7,
                name="MainThread", state=state if stack == 0 else "native", stack=stack,
            )  # fmt: skip
    return training


@pytest.mark.parametrize(
    ("gradients", "ddp", "causes"),
    [
        (4, {"find_unused_parameters": True}, ["unused-parameter-search"]),
        (3, {"find_unused_parameters": True}, []),
        (4, {"find_unused_parameters": True, "static_graph": True}, []),
        (4, {"find_unused_parameters": False}, []),
    ],
    ids=["all are used", "one is not", "searched once", "off"],
)
def test_a_search_for_unused_parameters_is_told_if_none_is(
    gradients: int, ddp: dict[str, bool], causes: list[str]
) -> None:
    found = parallel("_post_forward", gradients, **ddp).findings()
    assert [finding.cause for finding in found] == causes
    assert [finding.gain_ns for finding in found] == [pytest.approx(2_000_000, rel=0.01)] * len(causes)


@pytest.mark.parametrize(("on", "causes"), [(True, ["buffer-broadcasts"]), (False, [])])
def test_buffers_that_each_step_sends_save_their_time(on: bool, causes: list[str]) -> None:
    found = parallel("_sync_buffers", 4, broadcast_buffers=on).findings()
    assert [finding.cause for finding in found] == causes
    assert [finding.gain_ns for finding in found] == [pytest.approx(2_000_000, rel=0.01)] * len(causes)


def test_the_wait_for_a_late_rank_is_not_the_cost_of_sending_buffers() -> None:
    # Given broadcasts of 1 ms of which one in three waits for another rank, and looks that wait in all of them
    training = parallel("_sync_buffers", 4, "lock", broadcast_buffers=True)
    for step, dur in enumerate((1_000_000, 4_000_000, 1_000_000)):
        span = training.rank.span(0, "collective", step * STEP, dur, "gloo:broadcast", step=step)
        training.rank.add("collectives", span=span, operation="broadcast", group="0", bytes_in=4096)
    [finding] = training.findings()
    assert finding.cause == "buffer-broadcasts"
    assert finding.gain_ns == pytest.approx(1_000_000, rel=0.02)


def sending(function: str, state: str = "native") -> Training:
    """The same, in a function of ``torch.distributed``."""
    training = parallel(function, 4, state)
    for row in training.rank.rows["stacks"]:
        for frame in row["frames"]:
            frame["file"] = frame["file"].replace("nn/parallel/distributed.py", "distributed/distributed_c10d.py")
            frame["function"] = frame["function"].rpartition(".")[2]
    return training


@pytest.mark.parametrize(
    ("function", "cause", "says"),
    [
        ("all_gather_object", "small-collectives", "ranks exchange objects of Python: train.py:9"),
        ("all_gather", "small-collectives", "the program exchanges besides its gradients: all_gather: train.py:9"),
        ("barrier", "unneeded-collectives", "the program exchanges besides its gradients: barrier: train.py:9"),
    ],
)
def test_what_each_step_exchanges_besides_is_told_with_its_line(function: str, cause: str, says: str) -> None:
    [finding] = sending(function).findings()
    assert finding.cause == cause
    assert says in finding.title
    assert finding.gain_ns == pytest.approx(2_000_000, rel=0.01)


def test_waits_at_a_barrier_are_known_to_half_of_them() -> None:
    [finding] = sending("barrier", "lock").findings()
    assert finding.gain_ns == pytest.approx(2_000_000, rel=0.02)
    assert finding.gain_low_ns == pytest.approx(1_000_000, rel=0.02)


def test_objects_cost_what_exchanging_them_takes_where_no_rank_is_late() -> None:
    training = sending("all_gather_object", "lock")
    for step, dur in enumerate((1_000_000, 4_000_000, 1_000_000)):
        span = training.rank.span(0, "collective", step * STEP, dur, "gloo:all_gather", step=step)
        training.rank.add("collectives", span=span, operation="all_gather", group="0", bytes_in=4096)
    [finding] = training.findings()
    assert finding.cause == "small-collectives"
    assert finding.gain_ns == pytest.approx(1_000_000, rel=0.02)
