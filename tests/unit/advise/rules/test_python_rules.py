"""Time of a program's own lines in the forward is Python outside of the framework only beyond calling its operators."""

from __future__ import annotations

import pytest

from tests.unit.advise.rules.trainings import STEP, Training
from tests.unit.analyse.build import ORIGIN


@pytest.mark.parametrize(
    ("call_ns", "causes"), [(30_000, []), (1_000, ["python-in-step"])], ids=["calls", "other work"]
)
def test_calling_operators_in_the_forward_is_no_python_in_the_step(call_ns: int, causes: list[str]) -> None:
    # Given 60 operators a step of 5 µs each, in a line of the forward where 3 of 10 ms of native code are seen
    training = Training(steps=2, machine__speeds=[{"call_ns": call_ns}])
    training.run_steps()
    for _ in range(60):
        training.call("aten::mul", 5_000, [[8, 8], [8, 8]], "forward")
    training.call("torch::autograd::node", 5_000_000, phase="backward")
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
        training.rank.add("samples", ts=at, dur=spent, cpu=spent, stack=int(number % 10 >= 3), **look)
    assert training.causes() == causes
