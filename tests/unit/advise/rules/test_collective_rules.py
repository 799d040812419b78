"""Collectives are told by their number and sizes, settings of DistributedDataParallel by its own functions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.advise.rules.trainings import STEP, STEPS, Training
from tests.unit.analyse.build import ORIGIN


def exchanging(sizes: list[int], dur: int = 200_000) -> Training:
    training = Training()
    for step in range(STEPS):
        for number, size in enumerate(sizes):
            at = step * STEP + number * (dur + 1000)
            span = training.rank.span(0, "collective", at, dur, "all_reduce", step=step, phase="communication")
            training.rank.add("collectives", span=span, operation="allreduce", group="0", bytes_in=size)
    return training


@pytest.mark.parametrize(
    ("sizes", "causes"),
    [
        ([4096] * 30, ["small-collectives"]),
        ([4096] * 4, []),
        ([20 << 20, 10 << 20] * 4, ["unneeded-collectives"]),
        ([20 << 20, 10 << 20], []),
    ],
)
def test_collectives_are_told_by_number_and_size(sizes: list[int], causes: list[str]) -> None:
    assert exchanging(sizes).causes() == causes


DDP = "/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"


def parallel(function: str, gradients: int, **ddp: Any) -> Training:
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
                name="MainThread", state="native", stack=stack,
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
